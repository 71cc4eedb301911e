//! Runs inputs of a target on threads, and looks for faults: a panic, more than ten seconds of
//! work, more than a gigabyte.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::corpus::Corpus;
use crate::memory;
use crate::random::Random;
use crate::targets::Target;

/// No input may take longer.
const SLOWEST: Duration = Duration::from_secs(10);

/// What takes longer than this is not waited for.
const STUCK: Duration = Duration::from_mins(10);

/// The number of a thread that runs nothing.
const NONE: u64 = u64::MAX;

/// What a thread works on: the input, and when it began, in milliseconds.
struct Work {
    input: AtomicU64,
    since: AtomicU64,
}

/// Runs the inputs of these numbers; the count of those that were taken and not refused.
pub(crate) fn run(target: &Target, corpus: &Corpus, inputs: Range<u64>, threads: usize) -> u64 {
    let (next, taken, left) =
        (AtomicU64::new(inputs.start), AtomicU64::new(0), AtomicU64::new(threads as u64));
    let faults: Mutex<Vec<String>> = Mutex::new(Vec::new());
    let begun = Instant::now();
    let now = || u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    let work: Vec<Work> = (0..threads)
        .map(|_| Work { input: AtomicU64::new(NONE), since: AtomicU64::new(0) })
        .collect();
    std::thread::scope(|scope| {
        for own in &work {
            let (next, taken, left, faults, now) = (&next, &taken, &left, &faults, &now);
            let end = inputs.end;
            scope.spawn(move || {
                let done = catch_unwind(AssertUnwindSafe(|| {
                    // Parallel work stays on this thread, where its memory is counted.
                    let _own = rayon::ThreadPoolBuilder::new()
                        .num_threads(1)
                        .use_current_thread()
                        .build()
                        .unwrap();
                    let mut attack = (target.begin)(corpus);
                    loop {
                        let input = next.fetch_add(1, Relaxed);
                        if input >= end {
                            return;
                        }
                        own.since.store(now(), Relaxed);
                        own.input.store(input, Relaxed);
                        match one(&mut attack, input) {
                            Ok(true) => drop(taken.fetch_add(1, Relaxed)),
                            Ok(false) => {}
                            Err(what) => {
                                let what = format!("{} input {input}: {what}", target.name);
                                eprintln!("{what}");
                                faults.lock().unwrap().push(what);
                            }
                        }
                        own.input.store(NONE, Relaxed);
                    }
                }));
                if done.is_err() {
                    faults.lock().unwrap().push(format!("{}: it cannot begin", target.name));
                }
                left.fetch_sub(1, Relaxed);
            });
        }
        let mut shown = now();
        while left.load(Relaxed) > 0 {
            std::thread::sleep(Duration::from_millis(5));
            for own in &work {
                let (input, since) = (own.input.load(Relaxed), own.since.load(Relaxed));
                let lasts = Duration::from_millis(now().saturating_sub(since));
                if input != NONE && lasts > STUCK {
                    eprintln!("{} input {input} does not end", target.name);
                    std::process::exit(1);
                }
            }
            if now() - shown > 30_000 {
                shown = now();
                let (done, count) =
                    (next.load(Relaxed) - inputs.start, faults.lock().unwrap().len());
                eprintln!("{}: {done} inputs in {} s, {count} faults", target.name, shown / 1000);
            }
        }
    });
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{} faults: {faults:#?}", faults.len());
    taken.into_inner()
}

/// How long this thread has worked; on a busy machine it takes longer.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time` alone.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Runs one input: whether it was taken, or what is wrong.
fn one(attack: &mut dyn FnMut(&mut Random) -> bool, input: u64) -> Result<bool, String> {
    let started = cpu_time();
    memory::begin(input);
    let outcome = catch_unwind(AssertUnwindSafe(|| attack(&mut Random::of(input))));
    let (peak, lasted) = (memory::peak(), cpu_time().saturating_sub(started));
    let taken = outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()));
        format!("panicked: {}", text.unwrap_or_default())
    })?;
    if lasted > SLOWEST {
        return Err(format!("took {:.1} s", lasted.as_secs_f64()));
    }
    if peak > memory::MOST {
        return Err(format!("took {} MiB", peak >> 20));
    }
    Ok(taken)
}
