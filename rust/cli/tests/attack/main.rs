//! Mutated input at every border: each is refused with an error, or what comes out can be read.
//!
//! `make attack N=1000000 TARGET=npz` runs a million inputs of one of [`targets::ALL`]; without
//! `TARGET` each target runs its share. The ordinary test runs a few of each. A number stands for
//! an input: `FIRST=123 N=1 TARGET=npz` runs that one again. `SEEDS` is a folder of further models.

#[path = "../../../quantize/tests/common/mod.rs"]
mod common;
mod corpus;
mod memory;
mod mutate;
mod random;
mod run;
mod targets;

use corpus::Corpus;
use targets::{ALL, Target};

/// The targets that `TARGET` names, separated by commas; all of them without it.
fn chosen() -> Vec<&'static Target> {
    let Ok(names) = std::env::var("TARGET") else { return ALL.iter().collect() };
    let found = |name: &str| {
        let known: Vec<&str> = ALL.iter().map(|target| target.name).collect();
        let target = ALL.iter().find(|target| target.name == name);
        target.unwrap_or_else(|| panic!("TARGET is `{name}`, expected one of {known:?}"))
    };
    names.split(',').map(found).collect()
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().unwrap_or_else(|_| panic!("{name}")))
}

#[test]
fn a_few_inputs_of_each_target_are_taken_or_refused() {
    let corpus = Corpus::read();
    for target in ALL {
        let count = 40 * target.share;
        let taken = run::run(target, &corpus, 0..count, 2);
        assert!(taken > 0 && taken < count, "{}: {taken} of {count} are taken", target.name);
    }
}

#[test]
#[ignore = "as long as you like: make attack N=1000000"]
fn many_inputs_of_each_target_are_taken_or_refused() {
    let (first, threads) = (number("FIRST", 0), usize::try_from(number("THREADS", 2)).unwrap());
    let corpus = Corpus::read();
    let chosen = chosen();
    let shares: u64 = chosen.iter().map(|target| target.share).sum();
    let all = number("N", 100_000);
    for target in chosen {
        let count = (all * target.share).div_ceil(shares);
        let taken = run::run(target, &corpus, first..first + count, threads);
        println!("{}: {count} inputs, {taken} of them were taken, no fault", target.name);
    }
}
