//! How long models took.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The latency of one model for one sample, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The median.
    pub median_ms: f64,
    /// The 95th percentile.
    pub p95_ms: f64,
    /// The mean of all runs.
    pub mean_ms: f64,
    /// The number of measured runs.
    pub runs: usize,
}

/// The latency of several models for the same sample.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Latencies {
    /// The engine that ran them.
    pub engine: String,
    /// The number of threads of each run.
    pub threads: usize,
    /// One for each model.
    pub models: Vec<Latency>,
}

impl Latency {
    #[allow(clippy::cast_precision_loss)] // counts of runs
    pub(crate) fn of(mut times: Vec<Duration>) -> Latency {
        times.sort_unstable();
        let times: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1e3).collect();
        let mean_ms = times.iter().sum::<f64>() / times.len().max(1) as f64;
        let at = |part| quantile(&times, part);
        Latency { median_ms: at(0.5), p95_ms: at(0.95), mean_ms, runs: times.len() }
    }
}

/// The quantile of sorted numbers, with linear interpolation as in `NumPy`.
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let place = part * sorted.len().saturating_sub(1) as f64;
    let (below, above) = (place.floor() as usize, place.ceil() as usize);
    match (sorted.get(below), sorted.get(above)) {
        (Some(below), Some(above)) => below + (above - below) * place.fract(),
        _ => f64::NAN,
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ms median, {} ms p95", short(self.median_ms), short(self.p95_ms))
    }
}

/// Milliseconds with about three significant digits.
fn short(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.3}"),
        ms if ms < 100.0 => format!("{ms:.2}"),
        ms => format!("{ms:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_numpy() {
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        assert!((quantile(&ten, 0.5) - 5.5).abs() < 1e-12);
        assert!((quantile(&ten, 0.95) - 9.55).abs() < 1e-12);
        assert_eq!(quantile(&[7.0], 0.95), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
