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
    Drawn {
        bar: ProgressBar,
        /// What it counts.
        counted: Counted,
    },
}

impl<'a> Progress<'a> {
    /// Prints lines on `err`.
    pub(crate) fn lines(err: &'a mut dyn Write) -> Progress<'a> {
        Progress::Lines { err, last: 0 }
    }

    /// Draws a progress bar on the terminal; a spinner if the number of samples is unknown.
    pub(crate) fn bar(total: Option<usize>) -> Progress<'a> {
        let counted = Counted::samples(total);
        let bar = counted.bar(total);
        Progress::Drawn { bar, counted }
    }

    /// Updates the progress.
    pub(crate) fn show(&mut self, Done { done, total, rounding }: Done) {
        match self {
            Progress::Silent => {}
            Progress::Drawn { bar, counted } => {
                let now = rounding.map_or(Counted::samples(total), |_| Counted::Rounding);
                let total = if rounding.is_some() { Some(100) } else { total };
                if *counted != now {
                    // A new bar: its estimate of what is left starts anew.
                    bar.finish_and_clear();
                    (*bar, *counted) = (now.bar(total), now);
                }
                // If methods are evaluated, some samples run again, and the total grows.
                if let Some(total) = total {
                    bar.set_length(total as u64);
                }
                bar.set_position(rounding.map_or(done as u64, u64::from));
            }
            // Weights are rounded after the last sample was counted.
            Progress::Lines { .. } if rounding.is_some() => {}
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
        if let Progress::Drawn { bar, .. } = self {
            bar.finish_and_clear();
        }
    }
}

/// What a progress bar counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Samples of a number that is known.
    Samples,
    /// Samples, without an end that is known: a spinner.
    Endless,
    /// The percentage of the time that rounding weights takes.
    Rounding,
}

impl Counted {
    fn samples(total: Option<usize>) -> Counted {
        if total.is_some() { Counted::Samples } else { Counted::Endless }
    }

    fn bar(self, total: Option<usize>) -> ProgressBar {
        let bar = match total {
            Some(total) => ProgressBar::new(total as u64),
            None => ProgressBar::no_length(),
        };
        bar.set_draw_target(ProgressDrawTarget::stderr());
        let template = match self {
            Counted::Samples => "{bar:40} Processed {pos}/{len} samples, {eta} left",
            Counted::Endless => "{spinner} Processed {pos} samples in {elapsed}",
            Counted::Rounding => "{bar:40} Rounding weights, {pos} %, {eta} left",
        };
        // The templates are valid; for an invalid one, the default style of indicatif is used.
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar
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
            progress.show(Done { done, total, rounding: None });
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
            for (total, rounding) in [(total, None), (None, None), (None, Some(50))] {
                bar.show(Done { done: 1, total, rounding });
            }
            let Progress::Drawn { bar, counted } = bar else { panic!("not drawn") };
            assert_eq!((counted, bar.position(), bar.length()), (Counted::Rounding, 50, Some(100)));
        }
    }

    #[test]
    fn progress_without_a_known_end_counts() {
        let mut progress = Progress::bar(Some(5));
        progress.show(Done { done: 7, total: None, rounding: None });
        let Progress::Drawn { bar, .. } = &progress else { panic!("not drawn") };
        assert_eq!((bar.position(), bar.length()), (7, None));
        progress.show(Done { done: 8, total: Some(9), rounding: None });
    }
}
