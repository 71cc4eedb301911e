//! Sources of samples: a file, images, arrays, a random generator, or a Python iterator.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use numpy::PyArray1;
use pyo3::prelude::*;
use quantize_rs::{
    CalibrationError, CalibrationErrorKind, DataType, InputSpec, QuantizeError, Sample, Samples,
    Tensor,
};
use quantize_rs_runner::samples::{self, BoxedSamples, ImageFolder, Items};

use crate::buffer;
use crate::errors;
use crate::gil;
use crate::gil::Interrupt;
use crate::model::Model;
use crate::sample_iterator::Feeds;

/// A source of samples.
#[pyclass(frozen, module = "quantize_rs._core")]
pub(crate) struct Source(Kind);

enum Kind {
    File(PathBuf),
    Images(ImageFolder),
    Arrays(Vec<(String, Tensor)>),
    Samples(Vec<Sample>),
    Random {
        count: usize,
        shape: Option<Vec<usize>>,
        seed: u64,
    },
    Iterator {
        iterator: Py<PyAny>,
        items: Option<usize>,
    },
    /// Another source, whose samples must have a shape.
    Expecting {
        source: Py<Source>,
        shape: Vec<usize>,
    },
    /// Another source, which can be read only once, and the samples that were read from it.
    Kept {
        source: Py<Source>,
        read: Arc<Mutex<Vec<Sample>>>,
    },
}

/// A numpy array from Python: name, element type, shape, and the elements as bytes, little-endian
/// and in C order.
type Array<'py> = (String, String, Vec<usize>, Bound<'py, PyArray1<u8>>);

#[pymethods]
impl Source {
    /// A file, whose format follows from its extension, or a folder or pattern of images.
    #[staticmethod]
    fn file(path: PathBuf) -> Source {
        Source(Kind::File(path))
    }

    /// A folder or pattern of images.
    #[staticmethod]
    #[pyo3(signature = (
        path, *, size, mean, std, scale, layout, channel_order, resize, crop, limit
    ))]
    #[allow(clippy::too_many_arguments)] // the fields of `ImageFolder`
    fn images(
        py: Python<'_>,
        path: PathBuf,
        size: Option<[usize; 2]>,
        mean: Vec<f64>,
        std: Vec<f64>,
        scale: f64,
        layout: Option<String>,
        channel_order: String,
        resize: String,
        crop: Option<usize>,
        limit: Option<usize>,
    ) -> PyResult<Source> {
        let folder = gil::detached(py, None, || {
            let layout = layout.map(|layout| layout.parse()).transpose()?;
            let (channel_order, resize) = (channel_order.parse()?, resize.parse()?);
            let folder = ImageFolder {
                path,
                size,
                mean,
                std,
                scale,
                layout,
                channel_order,
                resize,
                crop,
                limit,
            };
            folder.check()?;
            Ok::<_, QuantizeError>(folder)
        })?;
        Ok(Source(Kind::Images(folder)))
    }

    /// Arrays with samples along their first axes.
    #[staticmethod]
    fn arrays(py: Python<'_>, arrays: Vec<Array<'_>>) -> PyResult<Source> {
        Ok(Source(Kind::Arrays(tensors(py, arrays, buffer::borrowed)?)))
    }

    /// Random values.
    #[staticmethod]
    #[pyo3(signature = (count, shape, seed))]
    fn random(count: usize, shape: Option<Vec<usize>>, seed: u64) -> Source {
        Source(Kind::Random { count, shape, seed })
    }

    /// An iterator over lists of arrays; `items` is the number of lists, if it is known.
    #[staticmethod]
    #[pyo3(signature = (iterator, items))]
    fn iterator(iterator: Py<PyAny>, items: Option<usize>) -> Source {
        Source(Kind::Iterator { iterator, items })
    }

    /// The same samples, which are refused unless they have this shape, without the first axis.
    #[staticmethod]
    fn expecting(source: Bound<'_, Source>, shape: Vec<usize>) -> Source {
        Source(Kind::Expecting { source: source.unbind(), shape })
    }

    /// The same samples; those of an iterator stay in memory, so that they can be read again.
    #[staticmethod]
    fn again(source: Bound<'_, Source>) -> Source {
        let read = Arc::default();
        Source(Kind::Kept { source: source.unbind(), read })
    }

    /// An iterator over the samples that the model gets.
    #[pyo3(signature = (model, limit))]
    fn feeds(&self, py: Python<'_>, model: &Model, limit: Option<usize>) -> PyResult<Feeds> {
        let interrupt = Arc::new(Interrupt::default());
        let samples = gil::detached(py, None, || self.samples(&model.model, limit, &interrupt))?;
        Ok(Feeds::new(samples, interrupt))
    }
}

impl Source {
    /// Samples that are in memory.
    pub(crate) fn of(samples: Vec<Sample>) -> Source {
        Source(Kind::Samples(samples))
    }

    /// Whether these are the samples of another source.
    pub(crate) fn is_again(&self) -> bool {
        matches!(self.0, Kind::Kept { .. })
    }

    /// Whether the samples come from a Python iterator.
    pub(crate) fn is_iterator(&self) -> bool {
        match &self.0 {
            Kind::Kept { source, read } => source.get().is_iterator() && read_of(read).is_empty(),
            Kind::Expecting { source, .. } => source.get().is_iterator(),
            kind => matches!(kind, Kind::Iterator { .. }),
        }
    }

    /// Whether the samples are random, for which there is a warning already.
    pub(crate) fn is_random(&self) -> bool {
        match &self.0 {
            Kind::Kept { source, .. } => source.get().is_random(),
            kind => matches!(kind, Kind::Random { .. }),
        }
    }

    /// Opens the source. Exceptions of an iterator are stored in `interrupt`.
    pub(crate) fn samples(
        &self,
        model: &quantize_rs::Model,
        limit: Option<usize>,
        interrupt: &Arc<Interrupt>,
    ) -> Result<BoxedSamples, CalibrationError> {
        let inputs = InputSpec::of(model);
        match &self.0 {
            Kind::File(path) => samples::open(path, &inputs, limit),
            Kind::Images(folder) => folder.open(&inputs, limit),
            Kind::Arrays(arrays) => samples::from_arrays(arrays.clone(), &inputs, limit),
            Kind::Samples(samples) => Ok(Box::new(Again(samples.clone().into_iter()))),
            Kind::Random { count, shape, seed } => {
                let count = limit.map_or(*count, |limit| limit.min(*count));
                samples::random(&inputs, count, shape.as_deref(), *seed)
            }
            Kind::Expecting { source, shape } => {
                let samples = source.get().samples(model, limit, interrupt)?;
                Ok(samples::expecting(samples, shape.clone()))
            }
            Kind::Kept { source, .. } if !source.get().is_iterator() => {
                source.get().samples(model, limit, interrupt)
            }
            Kind::Kept { source, read } => {
                let kept = read_of(read).clone();
                if !kept.is_empty() {
                    return Ok(Box::new(Again(kept.into_iter())));
                }
                let samples = source.get().samples(model, limit, interrupt)?;
                Ok(Box::new(Keeping { samples, read: Arc::clone(read) }))
            }
            Kind::Iterator { iterator, items } => {
                let iterator = Python::attach(|py| iterator.clone_ref(py));
                let interrupt = Arc::clone(interrupt);
                let left = limit.unwrap_or(usize::MAX);
                Ok(Box::new(Pulled {
                    iterator,
                    interrupt,
                    items: Items::of(model),
                    items_read: 0,
                    to_come: *items,
                    each: 1,
                    waiting: None,
                    failure: None,
                    conversions: Vec::new(),
                    left,
                }))
            }
        }
    }
}

fn read_of(read: &Mutex<Vec<Sample>>) -> MutexGuard<'_, Vec<Sample>> {
    read.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Samples that are also stored while they are read.
struct Keeping {
    samples: BoxedSamples,
    read: Arc<Mutex<Vec<Sample>>>,
}

impl Samples for Keeping {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        let next = self.samples.next_sample();
        if let Some(Ok(sample)) = &next {
            read_of(&self.read).push(sample.clone());
        }
        next
    }

    fn len_hint(&self) -> Option<usize> {
        self.samples.len_hint()
    }

    fn count(&mut self) -> Option<usize> {
        self.samples.count()
    }

    fn conversions(&self) -> Vec<String> {
        self.samples.conversions()
    }
}

/// Samples that were stored.
struct Again(std::vec::IntoIter<Sample>);

impl Samples for Again {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        self.0.next().map(Ok)
    }

    fn len_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

/// Samples of a Python iterator, which is advanced on the thread that reads them.
struct Pulled {
    iterator: Py<PyAny>,
    interrupt: Arc<Interrupt>,
    items: Items,
    /// The number of items that were read.
    items_read: usize,
    /// The number of remaining items, if it is known.
    to_come: Option<usize>,
    /// The number of samples of the last item.
    each: usize,
    /// The remaining samples of the last item.
    waiting: Option<BoxedSamples>,
    /// Why the next item could not be read.
    failure: Option<CalibrationError>,
    /// Those of the items so far.
    conversions: Vec<String>,
    left: usize,
}

impl Samples for Pulled {
    fn next_sample(&mut self) -> Option<Result<Sample, CalibrationError>> {
        self.take(|waiting| waiting.next_sample())
    }

    /// Items are read, because only their contents say how many samples they have.
    fn skip_sample(&mut self) -> Option<Result<(), CalibrationError>> {
        self.take(|waiting| waiting.skip_sample())
    }

    /// An estimate, which assumes that all remaining items have as many samples as the last one.
    /// The final item of a data loader may have fewer.
    fn len_hint(&self) -> Option<usize> {
        let waiting = self.waiting.as_ref().and_then(|waiting| waiting.len_hint()).unwrap_or(0);
        Some(self.to_come?.saturating_mul(self.each).saturating_add(waiting).min(self.left))
    }

    /// The first item says how many samples each has.
    fn count(&mut self) -> Option<usize> {
        self.to_come?;
        if self.waiting.is_none() && self.failure.is_none() && self.left > 0 {
            self.advance();
        }
        self.len_hint()
    }

    fn conversions(&self) -> Vec<String> {
        self.conversions.clone()
    }
}

impl Pulled {
    /// What `take` returns of the next sample.
    fn take<T>(
        &mut self,
        take: impl Fn(&mut BoxedSamples) -> Option<Result<T, CalibrationError>>,
    ) -> Option<Result<T, CalibrationError>> {
        if self.left == 0 {
            return None;
        }
        loop {
            if let Some(taken) = self.waiting.as_mut().and_then(&take) {
                self.left -= 1;
                return Some(taken);
            }
            if let Some(error) = self.failure.take() {
                self.left = 0;
                return Some(Err(error));
            }
            self.advance()?;
        }
    }

    /// Reads the next item; `None` at the end.
    fn advance(&mut self) -> Option<()> {
        match self.pull()? {
            Ok(samples) => {
                self.to_come = self.to_come.map(|items| items.saturating_sub(1));
                self.each = samples.len_hint().unwrap_or(1);
                for said in samples.conversions() {
                    if !self.conversions.contains(&said) {
                        self.conversions.push(said);
                    }
                }
                self.waiting = Some(samples);
            }
            Err(error) => self.failure = Some(error),
        }
        Some(())
    }

    /// The samples of the next item.
    fn pull(&mut self) -> Option<Result<BoxedSamples, CalibrationError>> {
        let pulled = Python::attach(|py| {
            let mut iterator = self.iterator.bind(py).try_iter()?;
            let Some(item) = iterator.next() else { return Ok(None) };
            // Copied: the iterator may reuse the memory for the next item.
            tensors(py, item?.extract()?, buffer::copied).map(Some)
        });
        match self.interrupt.keep(pulled) {
            Some(None) => None,
            Some(Some(arrays)) => {
                self.items_read += 1;
                let samples = self.items.samples(arrays);
                Some(samples.map_err(|error| self.without_rows(error)))
            }
            None => Some(Err(CalibrationError::new(CalibrationErrorKind::Cancelled))),
        }
    }

    /// The error of the last item, which says which one it is if it has no rows.
    fn without_rows(&self, error: CalibrationError) -> CalibrationError {
        let empty = matches!(error.kind(), CalibrationErrorKind::NoSamples { .. });
        match error.value().filter(|_| empty) {
            None => error,
            Some(input) => {
                let item = self.items_read - 1;
                let what = format!("item {item} has no rows: leave it out");
                CalibrationError::data(what).at_value(input)
            }
        }
    }
}

/// The arrays as tensors; `bytes_of` returns their elements.
fn tensors(
    py: Python<'_>,
    arrays: Vec<Array<'_>>,
    bytes_of: fn(&Bound<'_, PyArray1<u8>>) -> Bytes,
) -> PyResult<Vec<(String, Tensor)>> {
    let tensor = |(name, dtype, shape, elements): Array<'_>| {
        let Some(dtype) = DataType::all().find(|known| known.name() == dtype) else {
            let what = format!("`{name}` has elements of type {dtype}, expected plain numbers");
            let error = CalibrationError::data(what);
            return Err(errors::raised(py, &error.into(), None));
        };
        Ok((name, Tensor { dtype, shape, data: bytes_of(&elements) }))
    };
    arrays.into_iter().map(tensor).collect()
}
