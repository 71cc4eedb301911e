//! Several stages that run samples, with one progress counter.

use super::{Control, Progress};
use crate::QuantizeError;

/// Stages that run samples one after another: each continues the count of the stage before.
pub(crate) struct StagedProgress<'a> {
    threads: usize,
    ask: &'a mut dyn FnMut(Progress) -> bool,
    /// Samples that the finished stages ran.
    ran: usize,
}

impl<'a> StagedProgress<'a> {
    pub(crate) fn new(control: Control<'a>) -> StagedProgress<'a> {
        let Control { threads, progress: ask } = control;
        StagedProgress { threads, ask, ran: 0 }
    }

    /// Runs a stage and adds its progress to that of the stages before.
    pub(crate) fn next<T>(
        &mut self,
        work: impl FnOnce(Control<'_>) -> Result<T, QuantizeError>,
    ) -> Result<T, QuantizeError> {
        let (before, ask, mut now) = (self.ran, &mut *self.ask, 0);
        let mut progress = |Progress { done, total, rounding }: Progress| {
            now = now.max(done);
            let total = total.map(|total| before + total);
            ask(Progress { done: before + done, total, rounding })
        };
        let outcome = work(Control { threads: self.threads, progress: &mut progress });
        self.ran += now;
        outcome
    }
}
