//! Faults put in on purpose: the simulation finds every one of them, and without one it finds nothing.
//!
//! One line for each tells which world found it and by what. `SIM_SEEDS` and `SIM_STEPS` bound the search.

mod simulated;

use fencegate::mutant::{Mutant, choose};
use simulated::{number, search};

const SEEDS: u64 = 2000;
const STEPS: u64 = 150;

#[test]
fn every_mutant_is_found() {
    let (seeds, steps) = (number("SIM_SEEDS").unwrap_or(SEEDS), number("SIM_STEPS").unwrap_or(STEPS));
    let sound = search(0..seeds.min(50), steps, || choose(None));
    assert!(sound.wrong.is_empty(), "without a mutant: {:?}", sound.wrong);
    let mut survivors = Vec::new();
    for (name, mutant) in Mutant::ALL {
        let found = search(0..seeds, steps, || choose(Some(*mutant)));
        match found.wrong.first_key_value() {
            Some((seed, wrong)) => {
                println!("mutant {name}: found by seed {seed} ({} worlds): {wrong}", found.worlds)
            }
            None => {
                println!("mutant {name}: NOT FOUND in {} worlds", found.worlds);
                survivors.push(name);
            }
        }
    }
    assert!(survivors.is_empty(), "these survive: {survivors:?}");
}
