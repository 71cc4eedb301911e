//! What ran when: spans of time, for those that listen.
//!
//! A [`Span`] lasts as long as its value. Without a listener it costs one read of a number.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// How much of the work a span is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanLevel {
    /// A stage of the work: opening, planning, running samples.
    Stage,
    /// A part of a stage: a layer, a sample.
    Part,
}

/// A span that has ended.
#[derive(Clone, Debug)]
pub struct FinishedSpan {
    /// What was done.
    pub name: &'static str,
    /// What it was done to: a file, a weight; may be empty.
    pub of: Cow<'static, str>,
    /// How much of the work it is.
    pub level: SpanLevel,
    /// When it began.
    pub begun: Instant,
    /// How long it took.
    pub took: Duration,
}

/// Gets every span when it ends, on the thread of the span.
pub trait SpanListener: Send + Sync {
    /// A span has ended.
    fn finished(&self, span: &FinishedSpan);

    /// Whether it gets the parts of stages, too.
    fn takes_parts(&self) -> bool {
        true
    }
}

/// How many listen, and how many of them to the parts of stages.
static COUNTS: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
static LISTENERS: RwLock<Vec<Arc<dyn SpanListener>>> = RwLock::new(Vec::new());

/// Listens until it is dropped.
pub struct Listening(Arc<dyn SpanListener>);

/// Gives a listener every span of the process from now on.
#[must_use]
pub fn listen(listener: Arc<dyn SpanListener>) -> Listening {
    let mut all = LISTENERS.write().unwrap_or_else(PoisonError::into_inner);
    all.push(Arc::clone(&listener));
    count(&all);
    Listening(listener)
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut all = LISTENERS.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|other| !Arc::ptr_eq(other, &self.0));
        count(&all);
    }
}

fn count(all: &[Arc<dyn SpanListener>]) {
    let parts = all.iter().filter(|listener| listener.takes_parts()).count();
    for (place, found) in COUNTS.iter().zip([all.len(), parts]) {
        place.store(found, Ordering::Relaxed);
    }
}

/// A piece of work that ends when this is dropped.
#[must_use = "a span ends when it is dropped"]
pub struct Span(Option<FinishedSpan>);

impl Span {
    /// A stage of the work.
    ///
    /// ```
    /// let span = quantize_rs_onnx::Span::stage("plan");
    /// // … the work …
    /// drop(span);
    /// ```
    pub fn stage(name: &'static str) -> Span {
        Span::begin(name, SpanLevel::Stage, || Cow::Borrowed(""))
    }

    /// A part of a stage; `of` is only called if somebody listens.
    pub fn part(name: &'static str, of: impl FnOnce() -> String) -> Span {
        Span::begin(name, SpanLevel::Part, || of().into())
    }

    fn begin(name: &'static str, level: SpanLevel, of: impl FnOnce() -> Cow<'static, str>) -> Span {
        if COUNTS[level as usize].load(Ordering::Relaxed) == 0 {
            return Span(None);
        }
        let (begun, took) = (Instant::now(), Duration::ZERO);
        Span(Some(FinishedSpan { name, of: of(), level, begun, took }))
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(mut span) = self.0.take() else { return };
        span.took = span.begun.elapsed();
        // A listener may take long, and may end meanwhile.
        let all = LISTENERS.read().unwrap_or_else(PoisonError::into_inner).clone();
        let parts = span.level == SpanLevel::Part;
        let listeners = all.iter().filter(|listener| !parts || listener.takes_parts());
        listeners.for_each(|listener| listener.finished(&span));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Kept(Mutex<Vec<(&'static str, String)>>);

    impl SpanListener for Kept {
        fn finished(&self, span: &FinishedSpan) {
            self.0.lock().unwrap().push((span.name, span.of.to_string()));
        }
    }

    #[test]
    fn listeners_get_the_spans_that_end() {
        let kept = Arc::new(Kept::default());
        drop(Span::stage("before"));
        let listening = listen(Arc::clone(&kept) as Arc<dyn SpanListener>);
        {
            let _outer = Span::stage("outer");
            drop(Span::part("inner", || "w".to_owned()));
        }
        drop(listening);
        drop(Span::part("after", || panic!("without a listener")));
        let found = kept.0.lock().unwrap().clone();
        // Other tests open models meanwhile.
        let own = found.iter().filter(|(name, _)| matches!(*name, "inner" | "outer"));
        assert_eq!(own.count(), 2);
        assert!(found.iter().any(|(name, of)| *name == "inner" && of == "w"));
        assert!(!found.iter().any(|(name, _)| matches!(*name, "before" | "after")));
    }
}
