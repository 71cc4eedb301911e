//! Several works on samples whose progress is that of one.

use super::{Control, Progress};
use crate::QuantizeError;

/// Works on samples, one after the other: each begins to count where the last ended.
pub(crate) struct Works<'a> {
    threads: usize,
    ask: &'a mut dyn FnMut(Progress) -> bool,
    /// Samples run for what is over.
    ran: usize,
}

impl<'a> Works<'a> {
    pub(crate) fn new(control: Control<'a>) -> Works<'a> {
        let Control { threads, progress: ask } = control;
        Works { threads, ask, ran: 0 }
    }

    /// Does some work, whose progress is added to what was done before.
    pub(crate) fn next<T>(
        &mut self,
        work: impl FnOnce(Control<'_>) -> Result<T, QuantizeError>,
    ) -> Result<T, QuantizeError> {
        let (before, ask, mut now) = (self.ran, &mut *self.ask, 0);
        let mut progress = |Progress { done, total }: Progress| {
            now = now.max(done);
            ask(Progress { done: before + done, total: total.map(|total| before + total) })
        };
        let outcome = work(Control { threads: self.threads, progress: &mut progress });
        self.ran += now;
        outcome
    }
}
