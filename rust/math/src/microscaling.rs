//! Scales of 8 bits: which of them the blocks of a tensor take.
//!
//! Sources: OCP Microscaling Formats (MX) Specification, version 1.0, section 6.3, for powers of two; NVIDIA,
//! "Pretraining Large Language Models with NVFP4" (arXiv 2509.25149), for scales in two levels; Cook et al., "Four Over
//! Six" (arXiv 2512.02010), for blocks whose largest element is better off at 4 than at 6.

use crate::kernels::squared_errors;
use crate::params::normal;
use crate::qtype::E4M3;
use crate::{FloatSource, Layout, Params, QSpec, Range, Scales};

/// The scales of a tensor as numbers, and as they are stored.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockScales {
    /// What the codes stand for, for each group.
    pub params: Vec<Params>,
    /// The codes, for each group.
    pub codes: Vec<u8>,
    /// What all of them are multiplied by, in float32; 1 for powers of two, which have nothing of the kind.
    pub tensor_scale: f32,
}

/// The scales of every group of `data`, whose `ranges` are known, in the 8 bits that `spec` says; floats of this type
/// are the values. No value that comes back is beyond `largest`, in which it may have to fit.
///
/// - Powers of two (E8M0). The rule of the specification, `2^(⌊log2 absmax⌋ − e)` with `e` the exponent of the largest
///   float of the type, cuts off what is above that float, by less than the last step; twice that scale cuts off nothing,
///   and each group takes which of both leaves the least squared error. On normal numbers that is 19.05 dB instead of
///   18.78 in blocks of 32 floats of 4 bits, and 31.5 instead of 30.6 with 8 bits.
/// - E4M3, times one float32 for all. The largest element of a group lands near the largest float, 6, or near 4, below
///   which steps are half as wide: for both the code below and the code above are tried, and which of the four leaves the
///   least squared error is taken. On normal numbers in blocks of 16 that is 21.7 dB instead of the 20.4 of the nearest
///   code. The float32 leaves room for that: the code of the largest element of all is 256 and not 448.
///
/// Both are without denormal float32, which runtimes flush to zero, and without the code 0 of E4M3: a scale is never 0.
/// A group of zeros has a scale of 1 (times the float32 of all).
///
/// ```
/// use quantize_rs_math::{Granularity, Layout, QSpec, QType, Scales, block_scales, ranges};
/// let blocks = Granularity::Blocked { axis: 0, block_size: 2 };
/// let spec = QSpec { scales: Scales::Float8E8M0, ..QSpec::new(QType::Float4E2M1, true, blocks) };
/// let layout = Layout::of(&[4], blocks)?;
/// let data = [6.0, 0.5, 7.9, 0.3];
/// let found = block_scales(&data, &layout, &ranges(&data, &layout), &spec, f32::MAX);
/// assert_eq!(found.codes, [127, 128]); // 2^0 and 2^1
/// # Ok::<(), quantize_rs_math::MathError>(())
/// ```
pub fn block_scales<'a>(
    data: impl Into<FloatSource<'a>>,
    layout: &Layout,
    ranges: &[Range],
    spec: &QSpec,
    largest: f32,
) -> BlockScales {
    let data = data.into();
    assert_eq!(layout.check(data.len(), ranges.len()), Ok(()));
    let top = spec.qtype.max() as f32;
    match spec.scales {
        Scales::Float8E4M3FN => {
            let levels = TwoLevels::of(ranges, top, largest);
            let choices: Vec<_> =
                ranges.iter().map(|range| levels.choices(range.absmax())).collect();
            let codes = best(data, layout, spec, &choices, |code| levels.scale(code));
            let params = codes.iter().map(|code| symmetric(levels.scale(*code))).collect();
            BlockScales { params, codes, tensor_scale: levels.tensor_scale }
        }
        Scales::Float8E8M0 | Scales::Float => {
            let choice = |range: &Range| powers(range.absmax(), top, largest);
            let choices: Vec<_> = ranges.iter().map(choice).collect();
            let codes = best(data, layout, spec, &choices, power_of_two);
            let params = codes.iter().map(|code| symmetric(power_of_two(*code))).collect();
            BlockScales { params, codes, tensor_scale: 1.0 }
        }
    }
}

fn symmetric(scale: f32) -> Params {
    Params { scale, zero_point: 0 }
}

/// Of the choices of each group that which leaves the least squared error; of equal ones the first.
fn best<const N: usize>(
    data: FloatSource<'_>,
    layout: &Layout,
    spec: &QSpec,
    choices: &[[u8; N]],
    scale: impl Fn(u8) -> f32,
) -> Vec<u8> {
    let of = |choice: usize| choices.iter().map(|all| symmetric(scale(all[choice]))).collect();
    let each: [Vec<Params>; N] = std::array::from_fn(of);
    let errors = squared_errors(data, layout, each.each_ref().map(Vec::as_slice), spec);
    let least = |group: usize| {
        (1..N).fold(0, |a, b| if errors[b][group] < errors[a][group] { b } else { a })
    };
    choices.iter().enumerate().map(|(group, all)| all[least(group)]).collect()
}

/// What float32 adds to an exponent, which E8M0 adds too.
const BIAS: i32 = f32::MAX_EXP - 1;

const MANTISSA: u32 = f32::MANTISSA_DIGITS - 1;

/// The power of two that a code of E8M0 stands for: `2^(code − 127)`, and NaN for the last.
///
/// ```
/// use quantize_rs_math::power_of_two;
/// assert_eq!([0, 127, 130].map(power_of_two), [2.0_f32.powi(-127), 1.0, 8.0]);
/// assert!(power_of_two(255).is_nan());
/// ```
pub fn power_of_two(code: u8) -> f32 {
    match code {
        // The exponent that says so is that of denormal numbers and of what is not finite.
        0 => f32::from_bits(1 << (MANTISSA - 1)),
        u8::MAX => f32::NAN,
        code => f32::from_bits(u32::from(code) << MANTISSA),
    }
}

/// The exponent of a magnitude, as float32 and E8M0 write it.
fn exponent(size: f32) -> i32 {
    (size.to_bits() >> MANTISSA) as i32
}

/// The codes of E8M0 for a group: that of the specification, and the next.
fn powers(absmax: f32, top: f32, largest: f32) -> [u8; 2] {
    if absmax == 0.0 {
        return [BIAS as u8; 2];
    }
    let above = exponent(top) - BIAS;
    // The largest float of the type and the largest number allowed are each 1.5 to 2 times a power of two.
    let highest = exponent(largest) - above;
    let fits = |code: i32| code <= highest && power_of_two(code as u8) * top <= largest;
    let highest = if fits(highest) { highest } else { highest - 1 };
    let code = exponent(absmax) - above;
    [code, code + 1].map(|code| code.clamp(1, highest) as u8)
}

/// Scales of E4M3 times one float32.
struct TwoLevels {
    tensor_scale: f32,
    top: f32,
    largest: f32,
}

impl TwoLevels {
    /// The code that stands for 1, and the last that stands for a number.
    const ONE: u8 = 0x38;
    const LAST: u8 = 0x7e;

    /// What the scale of the largest element of all is stored as: the largest power of two that leaves room for a scale
    /// one and a half times as large.
    const ROOM: f64 = 256.0;

    fn of(ranges: &[Range], top: f32, largest: f32) -> TwoLevels {
        let absmax = ranges.iter().map(|range| range.absmax()).fold(0.0, f32::max);
        // The smallest code stands for 2^-9, times which it is still normal.
        let least = f32::MIN_POSITIVE * f32::from(1_u16 << 9);
        let tensor_scale = normal(f64::from(absmax) / (f64::from(top) * Self::ROOM)).max(least);
        let tensor_scale = if absmax == 0.0 { 1.0 } else { tensor_scale };
        TwoLevels { tensor_scale, top, largest }
    }

    /// The scale that a code stands for, as `DequantizeLinear` multiplies.
    fn scale(&self, code: u8) -> f32 {
        E4M3.decode(u16::from(code)) * self.tensor_scale
    }

    fn choices(&self, absmax: f32) -> [u8; 4] {
        if absmax == 0.0 {
            return [Self::ONE; 4];
        }
        let [below, above] = self.around(absmax / self.top);
        let [low, high] = self.around(absmax / (self.top * 2.0 / 3.0));
        [below, above, low, high]
    }

    /// The codes on both sides of a scale, neither 0, and neither so large that a value would be beyond the largest.
    fn around(&self, scale: f32) -> [u8; 2] {
        let wanted = scale / self.tensor_scale;
        let near = E4M3.encode(wanted) as u8;
        let below = if E4M3.decode(u16::from(near)) > wanted { near - 1 } else { near };
        [below, below + 1].map(|code| {
            let mut code = code.clamp(1, Self::LAST);
            while code > 1 && self.scale(code) * self.top > self.largest {
                code -= 1;
            }
            code
        })
    }
}
