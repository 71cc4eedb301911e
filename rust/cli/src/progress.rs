//! Progress of a calibration on standard error.

use std::io::Write;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use quantize_rs::Progress as Done;

use crate::console::say;

/// The number of samples between two lines.
const EVERY: usize = 10;

/// How progress is shown.
pub(crate) enum Progress<'a> {
    /// Not at all.
    Silent,
    /// A line every ten samples.
    Lines {
        /// The stream to print to.
        err: &'a mut dyn Write,
        /// The sample number of the last line.
        last: usize,
    },
    /// Drawn on a terminal.
    Drawn(ProgressBar),
}

impl<'a> Progress<'a> {
    /// Prints lines on `err`.
    pub(crate) fn lines(err: &'a mut dyn Write) -> Progress<'a> {
        Progress::Lines { err, last: 0 }
    }

    /// Draws a progress bar on the terminal; a spinner if the number of samples is unknown.
    pub(crate) fn bar(total: Option<usize>) -> Progress<'a> {
        let bar = match total {
            Some(total) => ProgressBar::new(total as u64),
            None => ProgressBar::no_length(),
        };
        bar.set_draw_target(ProgressDrawTarget::stderr());
        styled(&bar, total);
        Progress::Drawn(bar)
    }

    /// Updates the progress.
    pub(crate) fn show(&mut self, Done { done, total }: Done) {
        match self {
            Progress::Silent => {}
            Progress::Drawn(bar) => {
                // If methods are evaluated, some samples run again, and the total grows.
                if let Some(total) = total {
                    bar.set_length(total as u64);
                } else if bar.length().is_some() {
                    // The total is not known any more.
                    bar.unset_length();
                    styled(bar, None);
                }
                bar.set_position(done as u64);
            }
            Progress::Lines { err, last } => {
                if done > *last && (done.is_multiple_of(EVERY) || total == Some(done)) {
                    *last = done;
                    let of = total.map_or(String::new(), |total| format!("/{total}"));
                    say(*err, &format!("Processed {done}{of} samples"));
                }
            }
        }
    }

    /// Removes the progress bar from the terminal.
    pub(crate) fn clear(self) {
        if let Progress::Drawn(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Sets the style of a progress bar, or of a spinner if the number of samples is unknown.
fn styled(bar: &ProgressBar, total: Option<usize>) {
    let template = match total {
        Some(_) => "{bar:40} Processed {pos}/{len} samples, {eta} left",
        None => "{spinner} Processed {pos} samples in {elapsed}",
    };
    // The templates are valid; for an invalid one, the default style of indicatif is used.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(total: Option<usize>) -> String {
        let mut err = Vec::new();
        let mut progress = Progress::lines(&mut err);
        // The progress is also reported while the count has not changed.
        for done in (0..=25).flat_map(|done| [done, done]) {
            progress.show(Done { done, total });
        }
        progress.clear();
        String::from_utf8_lossy(&err).into_owned()
    }

    #[test]
    fn a_line_comes_every_ten_samples_and_for_the_last() {
        let expected =
            "Processed 10/25 samples\nProcessed 20/25 samples\nProcessed 25/25 samples\n";
        assert_eq!(lines(Some(25)), expected);
        assert_eq!(lines(None), "Processed 10 samples\nProcessed 20 samples\n");
    }

    #[test]
    fn the_templates_are_well_formed() {
        for total in [Some(25), None] {
            let mut bar = Progress::bar(total);
            bar.show(Done { done: 1, total });
            bar.clear();
        }
    }

    #[test]
    fn progress_without_a_known_end_counts() {
        let mut progress = Progress::bar(Some(5));
        progress.show(Done { done: 7, total: None });
        let Progress::Drawn(bar) = &progress else { panic!("not drawn") };
        assert_eq!((bar.position(), bar.length()), (7, None));
        progress.show(Done { done: 8, total: Some(9) });
    }
}
