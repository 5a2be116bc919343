//! Faults that are put in on purpose, one at a time, to show that the tests find them.
//!
//! Only with the feature `mutants`, which no release build can have; without it every question is `false` at compile time.
//! `tests/mutants.rs` and `tests/interleavings.rs` choose; `MUTANT=name` does so for any other test. Nothing else ever does.

#![cfg_attr(not(feature = "mutants"), allow(unreachable_pub, reason = "tests reach it, with the feature"))]

#[cfg(all(feature = "mutants", not(debug_assertions)))]
compile_error!("the feature `mutants` puts faults in: it is for tests only, and never for a release build");

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A new holder does not wait for the old one's sends.
    SkipDrain,
    /// The view is trusted as it is: the newest proof is good enough.
    TrustView,
    /// A proof that began before the request was in is good enough, if it comes back after.
    EarlyProof,
    /// Only a lower number is refused.
    LessOnly,
    /// A send ends with its caller.
    LeaveEarly,
    /// An account's gate goes with its znode.
    DropGate,
    /// What an earlier link has read still counts.
    KeepView,
    /// A refusal may rest on an old proof.
    OldRefusal,
    /// Whoever waits looks first and listens then.
    LateEar,
    /// Whoever waits for a drain looks first and listens then.
    LateDrain,
    /// A barrier is numbered when it has been sent.
    LateNumber,
    /// A place is judged free first and taken then.
    LooseCount,
    /// An account that was forgotten is judged as it was.
    KeepEntry,
    /// A proof is published before what was announced with it is taken in.
    EarlyPublish,
}

/// Whether this fault is in.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn is(_: Mutant) -> bool {
    false
}

/// Whether any is: then the fence does not look after itself, so that it is found from outside.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn is_any() -> bool {
    false
}

#[cfg(feature = "mutants")]
mod chosen {
    use std::cell::Cell;

    use super::Mutant;

    impl Mutant {
        /// The faults that show whoever goes on when, with their names.
        pub const ALL: &[(&str, Self)] = &[
            ("skip-drain", Self::SkipDrain),
            ("trust-view", Self::TrustView),
            ("early-proof", Self::EarlyProof),
            ("less-only", Self::LessOnly),
            ("leave-early", Self::LeaveEarly),
            ("drop-gate", Self::DropGate),
            ("keep-view", Self::KeepView),
            ("old-refusal", Self::OldRefusal),
        ];

        /// Those that show only where another thread goes on in the middle of them.
        pub const RACES: &[(&str, Self)] = &[
            ("late-ear", Self::LateEar),
            ("late-drain", Self::LateDrain),
            ("late-number", Self::LateNumber),
            ("loose-count", Self::LooseCount),
            ("keep-entry", Self::KeepEntry),
            ("early-publish", Self::EarlyPublish),
        ];
    }

    thread_local! {
        static CHOSEN: Cell<Option<Mutant>> = Cell::new(from_environment());
    }

    fn from_environment() -> Option<Mutant> {
        let name = std::env::var("MUTANT").ok()?;
        Mutant::ALL.iter().chain(Mutant::RACES).find(|(known, _)| *known == name).map(|(_, mutant)| *mutant)
    }

    /// Puts a fault in, for this thread.
    pub fn choose(mutant: Option<Mutant>) {
        CHOSEN.set(mutant);
    }

    pub(crate) fn is(mutant: Mutant) -> bool {
        CHOSEN.get() == Some(mutant)
    }

    pub(crate) fn is_any() -> bool {
        CHOSEN.get().is_some()
    }
}

#[cfg(feature = "mutants")]
pub use chosen::choose;
#[cfg(feature = "mutants")]
pub(crate) use chosen::{is, is_any};
