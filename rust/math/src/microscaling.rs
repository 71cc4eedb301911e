//! 8-bit scales of blocks (microscaling formats).
//!
//! Sources: OCP Microscaling Formats (MX) Specification, version 1.0, section 6.3, for power-of-two
//! scales; NVIDIA, "Pretraining Large Language Models with NVFP4" (arXiv 2509.25149), for two-level
//! scales; Cook et al., "Four Over Six" (arXiv 2512.02010), for blocks in which mapping the largest
//! element to 4 has a smaller error than mapping it to 6.

use crate::kernels::squared_errors;
use crate::params::normal;
use crate::qtype::E4M3;
use crate::{FloatSource, Layout, Params, QSpec, Range, Scales};

/// The scales of a tensor, as numbers and as stored codes.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockScales {
    /// The parameters that each group is quantized with.
    pub params: Vec<Params>,
    /// The code of the scale of each group.
    pub codes: Vec<u8>,
    /// The float32 scale of the whole tensor, by which all block scales are multiplied; 1 for
    /// power-of-two scales, which have none.
    pub tensor_scale: f32,
}

/// Computes the 8-bit scale of each group of `data` from its range, for the floats of 4 or 8 bits
/// of `spec`. No dequantized value exceeds `largest`, the largest number of the output type.
///
/// - Powers of two (E8M0). The rule of the specification is `2^(⌊log2 absmax⌋ − e)`, where `e` is
///   the exponent of the largest float of the type. It clips values above that float, by less than
///   the last step. Twice that scale clips nothing. Each group takes the scale with the smaller
///   squared error. On normally distributed numbers this gives 19.05 dB instead of 18.78 dB in
///   blocks of 32 4-bit floats, and 31.5 dB instead of 30.6 dB with 8 bits.
/// - E4M3, multiplied by one float32 for the tensor. The largest element of a group is mapped near
///   the largest float, 6, or near 4, below which steps are half as wide. For both targets the
///   codes below and above are tried, and the code with the smallest squared error is taken. On
///   normally distributed numbers in blocks of 16 this gives 21.7 dB instead of the 20.4 dB of the
///   nearest code. The float32 leaves room for that: the code of the largest block scale is 256 and
///   not 448.
///
/// Neither uses denormal float32 numbers, which runtimes flush to zero, nor the code 0 of E4M3: a
/// scale is never 0. A group of zeros has the scale 1 (multiplied by the scale of the tensor).
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

/// The candidate of each group with the smallest squared error; the first of equal ones.
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

/// The exponent bias of float32, which is also that of E8M0.
const BIAS: i32 = f32::MAX_EXP - 1;

const MANTISSA: u32 = f32::MANTISSA_DIGITS - 1;

/// The power of two that an E8M0 code represents: `2^(code − 127)`; NaN for code 255.
///
/// ```
/// use quantize_rs_math::power_of_two;
/// assert_eq!([0, 127, 130].map(power_of_two), [2.0_f32.powi(-127), 1.0, 8.0]);
/// assert!(power_of_two(255).is_nan());
/// ```
pub fn power_of_two(code: u8) -> f32 {
    match code {
        // An exponent field of 0 marks denormal numbers, so 2^-127 is one.
        0 => f32::from_bits(1 << (MANTISSA - 1)),
        u8::MAX => f32::NAN,
        code => f32::from_bits(u32::from(code) << MANTISSA),
    }
}

/// The biased exponent of a magnitude, as float32 and E8M0 store it.
fn exponent(size: f32) -> i32 {
    (size.to_bits() >> MANTISSA) as i32
}

/// The E8M0 codes to try for a group: that of the specification, and the next.
fn powers(absmax: f32, top: f32, largest: f32) -> [u8; 2] {
    if absmax == 0.0 {
        return [BIAS as u8; 2];
    }
    let above = exponent(top) - BIAS;
    // The largest float of the type and the largest allowed number are each 1.5 to 2 times a power
    // of two.
    let highest = exponent(largest) - above;
    let fits = |code: i32| code <= highest && power_of_two(code as u8) * top <= largest;
    let highest = if fits(highest) { highest } else { highest - 1 };
    let code = exponent(absmax) - above;
    [code, code + 1].map(|code| code.clamp(1, highest) as u8)
}

/// E4M3 block scales multiplied by one float32.
struct TwoLevels {
    tensor_scale: f32,
    top: f32,
    largest: f32,
}

impl TwoLevels {
    /// The code of 1, and the largest finite code.
    const ONE: u8 = 0x38;
    const LAST: u8 = 0x7e;

    /// The value of the stored scale of the largest element: the largest power of two that leaves
    /// room for a scale one and a half times as large.
    const ROOM: f64 = 256.0;

    fn of(ranges: &[Range], top: f32, largest: f32) -> TwoLevels {
        let absmax = ranges.iter().map(|range| range.absmax()).fold(0.0, f32::max);
        // The smallest code represents 2^-9; its product with this is still normal.
        let least = f32::MIN_POSITIVE * f32::from(1_u16 << 9);
        let tensor_scale = normal(f64::from(absmax) / (f64::from(top) * Self::ROOM)).max(least);
        let tensor_scale = if absmax == 0.0 { 1.0 } else { tensor_scale };
        TwoLevels { tensor_scale, top, largest }
    }

    /// The scale that a code represents, multiplied as `DequantizeLinear` does.
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

    /// The codes on both sides of a scale. Neither is 0, nor so large that a dequantized value
    /// would exceed the largest.
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
