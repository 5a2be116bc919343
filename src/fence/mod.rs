//! The fence: what decides whether a send may pass. Pure: no waiting, no clock, no logging, no randomness, no I/O.
//!
//! Read [`token`] (what is presented), [`view`] (what is known), [`verdict`] (the table), [`gate`] (permits and
//! drains), [`account`] (how a view is known to be current), [`handover`] (what to call a change of holder), [`elector`] (an
//! instance's part in an election).

pub mod account;
pub mod elector;
pub mod gate;
pub mod handover;
pub mod name;
pub mod role;
pub mod token;
pub mod verdict;
pub mod view;

#[cfg(test)]
mod account_tests;
#[cfg(test)]
mod gate_tests;
#[cfg(test)]
mod handover_tests;
#[cfg(test)]
mod verdict_tests;
