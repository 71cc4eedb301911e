//! Sample files and arrays, through the public functions.

use std::io::Write;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use quantize_rs::{CalibrationError, CalibrationErrorKind, InputSpec, Sample};
use quantize_rs_onnx::{DataType, Tensor};
use quantize_rs_runner::samples;
use safetensors::tensor::{Dtype, TensorView};
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

fn input(name: &str, dtype: DataType, shape: &[i64]) -> InputSpec {
    let shape = Some(shape.iter().map(|dim| usize::try_from(*dim).ok()).collect());
    InputSpec { name: name.into(), dtype: Some(dtype), shape }
}

/// Float values that count up from 0.
fn counting(shape: &[usize]) -> Tensor {
    let values: Vec<f32> = (0_u16..).take(shape.iter().product()).map(f32::from).collect();
    Tensor::from_f32(shape.to_vec(), &values)
}

fn npy(descr: &str, fortran: &str, shape: &str, data: &[u8]) -> Vec<u8> {
    let dict = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
    let length = u16::try_from(dict.len()).expect("short").to_le_bytes();
    [b"\x93NUMPY\x01\x00", length.as_slice(), dict.as_bytes(), data].concat()
}

fn npy_of(tensor: &Tensor) -> Vec<u8> {
    assert_eq!(tensor.dtype, DataType::Float);
    let lengths: Vec<String> = tensor.shape.iter().map(|length| format!("{length},")).collect();
    npy("<f4", "False", &format!("({})", lengths.concat()), &tensor.data)
}

fn npz(arrays: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let mut archive = ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, bytes) in arrays {
        let options = SimpleFileOptions::default().compression_method(method);
        archive.start_file(format!("{name}.npy"), options).expect("a new entry");
        archive.write_all(bytes).expect("written");
    }
    archive.finish().expect("finished").into_inner()
}

/// The header of one tensor.
fn header(name: &str, dtype: &str, shape: &str, [begin, end]: [usize; 2]) -> String {
    format!(
        "{{\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\
         \"data_offsets\":[{begin},{end}]}}}}"
    )
}

fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

fn safetensors(tensors: &[(&str, &Tensor)]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, tensor)| {
        let dtype = match tensor.dtype {
            DataType::Float => Dtype::F32,
            DataType::Int64 => Dtype::I64,
            other => unreachable!("{other}"),
        };
        (*name, TensorView::new(dtype, tensor.shape.clone(), &tensor.data).expect("a tensor"))
    });
    ::safetensors::serialize(views, None).expect("written")
}

/// Opens `bytes` as a file called `name`.
fn open(
    name: &str,
    bytes: &[u8],
    inputs: &[InputSpec],
    limit: Option<usize>,
) -> Result<Vec<Result<Sample, CalibrationError>>, CalibrationError> {
    let directory = tempfile::tempdir().expect("a directory");
    let path: PathBuf = directory.path().join(name);
    std::fs::write(&path, bytes).expect("written");
    let mut samples = samples::open(&path, inputs, limit)?;
    let hint = samples.len_hint();
    let all: Vec<_> = std::iter::from_fn(|| samples.next_sample()).collect();
    assert!(hint == Some(all.len()) || all.last().is_some_and(Result::is_err));
    Ok(all)
}

fn good(all: Result<Vec<Result<Sample, CalibrationError>>, CalibrationError>) -> Vec<Sample> {
    all.expect("opened").into_iter().map(|sample| sample.expect("a sample")).collect()
}

fn cut(
    array: Tensor,
    to: &InputSpec,
    limit: Option<usize>,
) -> Result<Vec<Tensor>, CalibrationError> {
    let arrays = vec![(to.name.clone(), array)];
    let mut samples = samples::from_arrays(arrays, std::slice::from_ref(to), limit)?;
    std::iter::from_fn(|| samples.next_sample())
        .map(|sample| sample.map(|sample| sample.inputs[0].1.clone()))
        .collect()
}

fn shapes(tensors: Result<Vec<Tensor>, CalibrationError>) -> Vec<Vec<usize>> {
    tensors.expect("samples").into_iter().map(|tensor| tensor.shape).collect()
}

#[test]
fn samples_are_along_the_first_axis() {
    let float = |shape: &[i64]| input("x", DataType::Float, shape);
    // rank of the input: one row at a time, or as many as the model's first dimension says
    assert_eq!(shapes(cut(counting(&[3, 2]), &float(&[-1, 2]), None)), [[1, 2]; 3]);
    assert_eq!(shapes(cut(counting(&[3, 2]), &float(&[1, 2]), None)), [[1, 2]; 3]);
    assert_eq!(shapes(cut(counting(&[6, 2]), &float(&[3, 2]), None)), [[3, 2]; 2]);
    assert_eq!(shapes(cut(counting(&[4]), &float(&[-1]), None)), [[1]; 4]);
    // one axis more: whole inputs
    assert_eq!(shapes(cut(counting(&[3, 5, 2]), &float(&[-1, 2]), None)), [[5, 2]; 3]);
    assert_eq!(shapes(cut(counting(&[3, 1, 2]), &float(&[1, 2]), None)), [[1, 2]; 3]);
    // of any rank: the array's own
    let any = InputSpec { shape: None, ..float(&[]) };
    assert_eq!(shapes(cut(counting(&[2, 4, 5]), &any, None)), [[1, 4, 5]; 2]);
    // a limit is a number of samples
    assert_eq!(shapes(cut(counting(&[7, 2]), &float(&[3, 2]), Some(2))), [[3, 2]; 2]);

    let values = cut(counting(&[4, 2]), &float(&[2, 2]), None).expect("samples");
    let second = Tensor::from_f32(vec![2, 2], &[4.0, 5.0, 6.0, 7.0]);
    assert_eq!(values, [Tensor::from_f32(vec![2, 2], &[0.0, 1.0, 2.0, 3.0]), second]);
}

#[test]
fn an_array_that_does_not_fit_reports_what_would() {
    let image = input("image", DataType::Float, &[-1, 3, 8, 6]);
    let cases: [(&[usize], &[i64], &str); 9] = [
        (&[5, 8, 6, 3], &[-1, 3, 8, 6], "are [1, 8, 6, 3]: its channels are last (NHWC)"),
        (&[5, 3, 8, 6], &[-1, 8, 6, 3], "are [1, 3, 8, 6]: its channels are first (NCHW)"),
        (
            &[5, 3, 8, 7],
            &[-1, 3, 8, 6],
            "expects float32 [?, 3, 8, 6], \
             samples of the array [5, 3, 8, 7] are [1, 3, 8, 7] (`image`)",
        ),
        (&[5, 2, 8, 6, 3], &[-1, 3, 8, 6], "transpose the axes of a sample to [0, 3, 1, 2]"),
        (&[3, 8, 6], &[-1, 3, 8, 6], "the array is [3, 8, 6]: a single sample needs a first axis"),
        (&[8], &[-1, 3, 8, 6], "expected 4 axes, or 5 with whole inputs along the first"),
        (&[7, 2], &[3, 2], "takes 3 rows at a time, the array has 7: 1 are left over"),
        (
            &[7, 1],
            &[],
            "the array is [7, 1]: pass one number for all samples, or an array with one",
        ),
        (&[], &[-1, 2], "the array is a single number"),
    ];
    for (array, expects, message) in cases {
        let spec = input("image", DataType::Float, expects);
        let error = cut(counting(array), &spec, None).expect_err(message).to_string();
        assert!(error.contains(message), "{error:?} without {message:?}");
        assert!(error.ends_with("(`image`)"), "{error}");
    }
    for (array, limit) in [(counting(&[0, 3, 8, 6]), None), (counting(&[2, 3, 8, 6]), Some(0))] {
        let error = cut(array, &image, limit).expect_err("no samples");
        assert!(matches!(error.kind(), CalibrationErrorKind::NoSamples { .. }), "{error}");
    }
    assert!(cut(counting(&[2, 0]), &input("x", DataType::Float, &[-1, -1]), None).is_err());
}

#[test]
fn scalar_inputs_take_a_number_for_each_sample_or_one_for_all() {
    let inputs = [input("x", DataType::Float, &[-1, 2]), input("rate", DataType::Int64, &[])];
    let rates = |shape: &[usize]| {
        let arrays =
            vec![("x".to_owned(), counting(&[3, 2])), ("rate".to_owned(), counting(shape))];
        let mut samples = samples::from_arrays(arrays, &inputs, None)?;
        let mut rates = Vec::new();
        while let Some(sample) = samples.next_sample() {
            let sample = sample?;
            let rate = sample.get("rate").expect("a rate");
            assert_eq!((rate.dtype, rate.shape.as_slice()), (DataType::Int64, &[][..]));
            rates.push(i64::from_le_bytes(rate.data[..].try_into().expect("one integer")));
        }
        Ok::<_, CalibrationError>(rates)
    };
    assert_eq!(rates(&[3]).expect("one each"), [0, 1, 2]);
    assert_eq!(rates(&[]).expect("one for all"), [0, 0, 0]);
    let error = rates(&[2]).expect_err("two rates for three samples").to_string();
    assert!(error.contains("different numbers of samples: `x` 3, `rate` 2"), "{error}");

    let alone = vec![("rate".to_owned(), counting(&[]))];
    let samples = samples::from_arrays(alone, &inputs[1..], None).expect("a sample");
    assert_eq!(samples.len_hint(), Some(1));
}

#[test]
fn arrays_are_matched_to_inputs_by_name() {
    let ids = input("ids", DataType::Int64, &[-1, -1]);
    let mask = input("mask", DataType::Bool, &[-1, 2]);
    let both = [ids.clone(), mask];
    let array = |name: &str, rows| (name.to_owned(), counting(&[rows, 2]));
    let ones = Tensor::from_f32(vec![2, 2], &[1.0; 4]);

    // labels next to the inputs are ignored
    let arrays = vec![array("labels", 2), ("mask".into(), ones.clone()), array("ids", 2)];
    let mut samples = samples::from_arrays(arrays, &both, None).expect("samples");
    let first = samples.next_sample().expect("one").expect("good");
    let names: Vec<&str> = first.inputs.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["ids", "mask"]);
    assert_eq!(first.get("ids").map(|ids| ids.dtype), Some(DataType::Int64));

    let error = |arrays, inputs: &[InputSpec]| {
        samples::from_arrays(arrays, inputs, None).err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert_eq!(
        error(vec![array("ids", 2), array("Mask", 2)], &both),
        "no array for input `mask`; arrays that match no input: `Mask` (`mask`)"
    );
    let lengths = "the arrays have different numbers of samples: `ids` 3, `mask` 2 (`mask`)";
    let unequal = || vec![array("ids", 3), ("mask".into(), ones.clone())];
    assert_eq!(error(unequal(), &both), lengths);
    // A limit does not hide it.
    let limited = samples::from_arrays(unequal(), &both, Some(1)).err();
    assert_eq!(limited.map(|error| error.to_string()).as_deref(), Some(lengths));
    assert_eq!(error(vec![], &both), "no calibration samples: no arrays");
    // a single array needs no name
    for name in ["", "arr_0", "ids"] {
        assert!(
            samples::from_arrays(vec![array(name, 2)], std::slice::from_ref(&ids), None).is_ok()
        );
    }
    assert_eq!(
        error(vec![array("", 2)], &both),
        "the model has 2 inputs, `ids`, `mask`: name the one that the array belongs to (`ids`)"
    );
    assert!(error(vec![array("x", 2)], &[ids]).contains("arrays that match no input: `x`"));
    for name in ["x.npz", "x.safetensors"] {
        let file = match name {
            "x.npz" => npz(&[("y", npy_of(&counting(&[2, 2])))], CompressionMethod::Stored),
            _ => safetensors(&[("y", &counting(&[2, 2]))]),
        };
        let error = open(name, &file, &both, None).expect_err("no such arrays").to_string();
        assert!(error.starts_with("no array for input `ids`, `mask`; arrays"), "{error}");
        assert!(error.contains("input: `y` (`ids`, in `") && error.contains(name), "{error}");
    }
}

#[test]
fn the_only_array_of_a_file_belongs_to_the_only_input() {
    let x = [input("x", DataType::Float, &[-1, 2])];
    let [rows, others] = [counting(&[2, 2]), counting(&[2, 3])];
    let folder = tempfile::tempdir().expect("a directory");
    let file = |name: &str, array: &str, rows: &Tensor| match name {
        "x.npz" => npz(&[(array, npy_of(rows))], CompressionMethod::Stored),
        _ => safetensors(&[(array, rows)]),
    };
    for name in ["x.npz", "x.safetensors"] {
        let named = good(open(name, &file(name, "x", &rows), &x, None));
        assert_eq!(good(open(name, &file(name, "y", &rows), &x, None)), named);
        for (array, said) in [
            ("x", &[][..]),
            ("arr_0", &[]),
            ("y", &["the only array of the samples, `y`, is taken for input `x`"]),
        ] {
            let path = folder.path().join(name);
            std::fs::write(&path, file(name, array, &rows)).expect("written");
            let samples = samples::open(&path, &x, None).expect("samples");
            assert_eq!(samples.conversions(), said);
        }
        let error = open(name, &file(name, "y", &others), &x, None).expect_err("another shape");
        assert!(error.to_string().contains("input `x` expects"), "{error}");
    }
    // Of several arrays none is taken by another name.
    let two = safetensors(&[("y", &rows), ("z", &rows)]);
    let error = open("x.safetensors", &two, &x, None).expect_err("no such array").to_string();
    assert!(error.starts_with("no array for input `x`; arrays"), "{error}");
}

#[test]
fn a_bad_value_stops_at_its_sample() {
    let mut values = vec![0.0; 6];
    values[5] = f32::NAN;
    let bytes = npy_of(&Tensor::from_f32(vec![3, 2], &values));
    let all = open("x.npy", &bytes, &[input("x", DataType::Float, &[-1, 2])], None);
    let all = all.expect("opened");
    assert_eq!(all.iter().filter(|sample| sample.is_ok()).count(), 2);
    let error = all.last().and_then(|last| last.as_ref().err()).expect("the third");
    let message = "NaN at [0, 1], samples must be finite (`x`, in `";
    assert!(error.to_string().starts_with(message), "{error}");
    assert!(error.to_string().ends_with("x.npy`)"), "{error}");
    // The caller knows the number of the sample: an array may be one item of many.
    assert_eq!(error.sample(), None);
}

#[test]
fn every_file_format_gives_the_same_numbers() {
    let x = [input("x", DataType::Float, &[-1, 3])];
    let little: Vec<u8> = (0..6_u8).flat_map(|i| f32::from(i).to_le_bytes()).collect();
    let big: Vec<u8> = (0..6_u8).flat_map(|i| f32::from(i).to_be_bytes()).collect();
    let fortran: Vec<u8> =
        [0_u8, 3, 1, 4, 2, 5].into_iter().flat_map(|i| f32::from(i).to_be_bytes()).collect();
    let double: Vec<u8> = (0..6).flat_map(|i| f64::from(i).to_le_bytes()).collect();
    let short: Vec<u8> = (0..6_i16).flat_map(i16::to_be_bytes).collect();
    let files = [
        npy("<f4", "False", "(2, 3)", &little),
        npy(">f4", "False", "(2, 3)", &big),
        npy(">f4", "True", "(2, 3)", &fortran),
        npy("<f8", "False", "(2, 3)", &double),
        npy(">i2", "False", "(2, 3)", &short),
        npy("|u1", "False", "(2, 3)", &[0, 1, 2, 3, 4, 5]),
    ];
    let expected = good(open("x.NPY", &files[0], &x, None));
    assert_eq!(expected[1].get("x"), Some(&Tensor::from_f32(vec![1, 3], &[3.0, 4.0, 5.0])));
    for file in files {
        assert_eq!(good(open("x.npy", &file, &x, None)), expected);
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let archive = npz(&[("labels", b"junk".to_vec()), ("x", file.clone())], method);
            assert_eq!(good(open("x.npz", &archive, &x, None)), expected);
            assert_eq!(good(open("x.npz", &archive, &x, Some(1))), expected[..1]);
        }
    }
}

#[test]
fn arrays_in_fortran_order_have_the_same_samples() {
    let x = [input("x", DataType::Float, &[-1, 2, 3])];
    let shape = [4, 2, 3];
    let value = |row: u8, line: u8, column: u8| f32::from((row * 2 + line) * 3 + column);
    let columns = (0..3).flat_map(|column| (0..2).map(move |line| (line, column)));
    let elements = columns.flat_map(|(line, column)| (0..4).map(move |row| (row, line, column)));
    let data: Vec<u8> = elements.flat_map(|(i, j, k)| value(i, j, k).to_le_bytes()).collect();
    let file = npy("<f4", "True", "(4, 2, 3)", &data);
    let expected = good(open("x.npy", &npy_of(&counting(&shape)), &x, None));
    assert_eq!(good(open("x.npy", &file, &x, None)), expected);
    for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
        let archive = npz(&[("x", file.clone())], method);
        assert_eq!(good(open("x.npz", &archive, &x, None)), expected);
        assert_eq!(good(open("x.npz", &archive, &x, Some(3))), expected[..3]);
    }
    let short = npy("<f4", "True", "(4, 2, 3)", &data[4..]);
    assert!(open("x.npy", &short, &x, None).is_err());
}

#[test]
fn an_archive_is_read_up_to_the_limit() {
    let x = [input("x", DataType::Float, &[2, 3])];
    let mut archive = npz(&[("x", npy_of(&counting(&[9, 3])))], CompressionMethod::Stored);
    // In the ninth row, which is left over too.
    let last = 8_f32 * 3.0 + 2.0;
    let at = archive.windows(4).position(|bytes| bytes == last.to_le_bytes()).expect("the last");
    archive[at] ^= 1;
    let expected = good(open("x.npy", &npy_of(&counting(&[8, 3])), &x, Some(2)));
    assert_eq!(good(open("x.npz", &archive, &x, Some(2))), expected);
    // Whatever the limit, the message for an array that does not fit has its own shape.
    let error = open("x.npz", &archive, &[input("x", DataType::Float, &[-1, 4])], Some(1));
    assert!(error.expect_err("a misfit").to_string().contains("the array [9, 3]"));
}

#[test]
fn safetensors_give_the_samples_of_their_array() {
    let inputs = [input("x", DataType::Float, &[-1, 3]), input("ids", DataType::Int64, &[-1])];
    let (x, ids) = (counting(&[4, 3]), counting(&[4]));
    let arrays = vec![("x".to_owned(), x.clone()), ("ids".to_owned(), ids.clone())];
    let mut expected = samples::from_arrays(arrays, &inputs, None).expect("samples");
    let expected: Vec<Sample> =
        std::iter::from_fn(|| expected.next_sample()).map(|s| s.expect("a sample")).collect();
    let ids64 = samples::convert(ids.clone(), DataType::Int64, "ids").expect("whole numbers");
    for ids in [ids, ids64] {
        let file = safetensors(&[("labels", &counting(&[7])), ("x", &x), ("ids", &ids)]);
        assert_eq!(good(open("s.safetensors", &file, &inputs, None)), expected);
        assert_eq!(good(open("s.safetensors", &file, &inputs, Some(3))), expected[..3]);
    }
}

#[test]
fn safetensors_of_every_plain_type_are_converted_and_no_other_is() {
    let x = [input("x", DataType::Float, &[-1])];
    let plain = [
        ("BOOL", DataType::Bool),
        ("U8", DataType::UInt8),
        ("I8", DataType::Int8),
        ("U16", DataType::UInt16),
        ("I16", DataType::Int16),
        ("F16", DataType::Float16),
        ("BF16", DataType::BFloat16),
        ("U32", DataType::UInt32),
        ("I32", DataType::Int32),
        ("F32", DataType::Float),
        ("U64", DataType::UInt64),
        ("I64", DataType::Int64),
        ("F64", DataType::Double),
    ];
    let expected = [1.0, 0.0, 1.0].map(|value| Tensor::from_f32(vec![1], &[value]));
    let values = Tensor::from_f32(vec![3], &[1.0, 0.0, 1.0]);
    for (name, dtype) in plain {
        let data = samples::convert(values.clone(), dtype, "x").expect("zeros and ones").data;
        let file = with_header(&header("x", name, "[3]", [0, data.len()]), &data);
        let all = good(open("s.safetensors", &file, &x, None));
        let all: Vec<Tensor> = all.into_iter().map(|sample| sample.inputs[0].1.clone()).collect();
        assert_eq!(all, expected, "{name}");
    }
    for (name, length) in [("F8_E4M3", 3), ("F8_E5M2", 3), ("F8_E8M0", 3), ("C64", 24)] {
        let file = with_header(&header("x", name, "[3]", [0, length]), &vec![0; length]);
        let error = open("s.safetensors", &file, &x, None).expect_err(name).to_string();
        let message = format!("elements of type {name} are not plain numbers (`");
        assert!(error.starts_with(&message) && error.ends_with("s.safetensors[x]`)"), "{error}");
    }
}

#[test]
fn safetensors_with_a_false_header_are_refused_before_allocation() {
    let x = [input("x", DataType::Float, &[-1, 3])];
    let two = |first: [usize; 2], second: [usize; 2]| {
        let entry = |name, [begin, end]: [usize; 2]| {
            header(name, "F32", "[1,3]", [begin, end]).trim_matches(['{', '}']).to_owned() + "}"
        };
        format!("{{{},{}}}", entry("x", first), entry("y", second))
    };
    let deep = "[".repeat(10_000);
    let headers = [
        (header("x", "F32", "[1,3]", [0, 12]), None),
        (header("x", "F32", "[2,3]", [0, 12]), Some("its header is wrong")),
        (header("x", "F32", "[2,3]", [0, 24]), Some("take 24 bytes, there are 12")),
        (header("x", "F32", "[1,2]", [0, 8]), Some("take 8 bytes, there are 12")),
        (header("x", "F32", "[1,3]", [12, 0]), Some("its header is wrong")),
        (header("x", "F32", "[1,3]", [4, 16]), Some("its header is wrong")),
        (header("x", "F32", "[4611686018427387904,4]", [0, 0]), Some("its header is wrong")),
        (header("x", "F32", "[9223372036854775807,0]", [0, 0]), Some("there are 12")),
        (header("x", "F32", "[-1,3]", [0, 12]), Some("its header is wrong")),
        (header("x", "F99", "[1,3]", [0, 12]), Some("its header is wrong")),
        (two([0, 12], [0, 12]), Some("its header is wrong")),
        (two([0, 12], [6, 18]), Some("its header is wrong")),
        (two([0, 12], [12, 24]), Some("take 24 bytes, there are 12")),
        ("{}".to_owned(), Some("take 0 bytes, there are 12")),
        (String::new(), Some("its header is wrong")),
        ("[]".to_owned(), Some("its header is wrong")),
        (deep, Some("its header is wrong")),
        ("\u{e9}".to_owned(), Some("its header is wrong")),
    ];
    for (text, message) in headers {
        let result = open("s.safetensors", &with_header(&text, &[0; 12]), &x, None);
        let Some(message) = message else {
            assert_eq!(good(result).len(), 1);
            continue;
        };
        let error = result.expect_err(&text).to_string();
        assert!(error.starts_with("not a .safetensors file: "), "{text}: {error}");
        assert!(error.contains(message), "{text}: {error}");
        assert!(error.ends_with("s.safetensors`)"), "{error}");
    }
    for claim in [3, 1 << 20, u64::MAX] {
        let file = [claim.to_le_bytes().as_slice(), b"{}"].concat();
        let error = open("s.safetensors", &file, &x, None).expect_err("too long").to_string();
        assert!(error.contains("claims") && error.contains("the file has 10"), "{error}");
    }
    let whole = safetensors(&[("x", &counting(&[1, 3]))]);
    for length in 0..whole.len() {
        assert!(open("s.safetensors", &whole[..length], &x, None).is_err());
    }
}

#[test]
fn false_sizes_are_refused_before_allocation() {
    let x = [input("x", DataType::Float, &[-1, 3])];
    let lies = [
        ("(158329674399744, 3)", "takes 1899956092796928 bytes, there are 12"),
        ("(9223372036854775807, 9)", "larger than any memory"),
        ("(2, 3)", "takes 24 bytes, there are 12"),
        ("(1, 2)", "takes 8 bytes, there are 12"),
    ];
    for (shape, message) in lies {
        for order in ["False", "True"] {
            let file = npy("<f4", order, shape, &[0; 12]);
            let error = open("x.npy", &file, &x, None).expect_err(shape).to_string();
            assert!(error.contains(message), "{error:?} without {message:?}");
            let archive = npz(&[("x", file)], CompressionMethod::Deflated);
            let error = open("x.npz", &archive, &x, None).expect_err(shape).to_string();
            assert!(error.contains("x.npz[x]"), "{error}");
        }
    }
    let file = npy_of(&counting(&[1, 3]));
    for length in 0..file.len() {
        assert!(open("x.npy", &file[..length], &x, None).is_err());
    }
}

#[test]
fn a_damaged_archive_is_an_error() {
    let x = [input("x", DataType::Float, &[-1, 3])];
    let whole = npz(&[("x", npy_of(&counting(&[1, 3])))], CompressionMethod::Stored);
    let at = whole.windows(4).position(|w| w == 2_f32.to_le_bytes()).expect("the last element");
    let mut damaged = whole.clone();
    damaged[at] ^= 1;
    let all = open("x.npz", &damaged, &x, None).expect("its sizes fit");
    let error = all.last().and_then(|last| last.as_ref().err()).expect("a wrong checksum");
    assert!(error.to_string().contains("cannot be read from its archive"), "{error}");
    assert!(error.to_string().contains("x.npz[x]"), "{error}");
    for length in 0..whole.len() {
        assert!(open("x.npz", &whole[..length], &x, None).is_err());
    }
}

#[test]
fn a_npy_file_feeds_one_input_only() {
    let inputs = [input("a", DataType::Float, &[-1, 3]), input("b", DataType::Float, &[-1, 3])];
    let error = open("x.npy", &npy_of(&counting(&[1, 3])), &inputs, None).expect_err("two inputs");
    assert!(error.to_string().contains("the model has 2, use .npz"), "{error}");
}

#[test]
fn the_calibration_set_of_the_example_opens() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/calibration.npy");
    let any = InputSpec { name: "x".into(), dtype: None, shape: None };
    let mut samples = samples::open(&path, &[any], Some(3)).expect("opened");
    let first = samples.next_sample().expect("one").expect("good");
    assert_eq!(samples.len_hint(), Some(2));
    assert!(first.get("x").is_some_and(|value| value.elements() > 0));
}

#[test]
fn bytes_in_memory_are_not_copied_when_the_type_fits() {
    let data = Bytes::from(vec![0_u8; 48]);
    let tensor = Tensor { dtype: DataType::Float, shape: vec![4, 3], data: data.clone() };
    let values = cut(tensor, &input("x", DataType::Float, &[-1, 3]), None).expect("samples");
    assert!(std::ptr::eq(values[1].data.as_ptr(), data[12..].as_ptr()));
}
