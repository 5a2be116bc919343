//! How many requests may wait, in all and for one account.
//!
//! Counts only. Half of an account's places are kept for claims of its last proven holder, so that zombies that retry
//! without end cannot fill them.

use std::sync::Arc;

use crate::mutant::{self, Mutant};
use crate::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Places, some of which are taken.
#[derive(Debug, Default)]
pub struct Places {
    all: AtomicUsize,
    others: AtomicUsize,
}

impl Places {
    /// How many are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.all.load(SeqCst)
    }
}

/// The bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// In all.
    pub most: usize,
    /// For one account.
    pub most_per_account: usize,
}

/// A place; dropped, it is free again.
#[derive(Debug)]
pub struct Parked {
    global: Arc<Places>,
    account: Arc<Places>,
    other: bool,
}

/// Takes a place, or none where a bound is reached. `holder`: the claim is the last proven holder's.
#[must_use]
pub fn park(global: &Arc<Places>, account: &Arc<Places>, bounds: Bounds, holder: bool) -> Option<Parked> {
    if mutant::is(Mutant::LooseCount) && (global.taken() >= bounds.most) {
        return None;
    }
    // Counted first, judged then: two that come at once never both take the last place.
    let all = global.all.fetch_add(1, SeqCst);
    let own = account.all.fetch_add(1, SeqCst);
    let others = if holder { 0 } else { account.others.fetch_add(1, SeqCst) };
    let parked = Parked { global: Arc::clone(global), account: Arc::clone(account), other: !holder };
    let fits = all < bounds.most
        && own < bounds.most_per_account
        && (holder || others < bounds.most_per_account.div_ceil(2));
    (fits || mutant::is(Mutant::LooseCount)).then_some(parked)
}

impl Drop for Parked {
    fn drop(&mut self) {
        self.global.all.fetch_sub(1, SeqCst);
        self.account.all.fetch_sub(1, SeqCst);
        if self.other {
            self.account.others.fetch_sub(1, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_an_accounts_places_are_kept_for_its_holder() {
        let (global, account) = (Arc::<Places>::default(), Arc::<Places>::default());
        let bounds = Bounds { most: 100, most_per_account: 4 };
        let zombies: Vec<_> = (0..4).map(|_| park(&global, &account, bounds, false)).collect();
        assert_eq!(zombies.iter().filter(|place| place.is_some()).count(), 2);
        let holder: Vec<_> = (0..3).map(|_| park(&global, &account, bounds, true)).collect();
        assert_eq!(holder.iter().filter(|place| place.is_some()).count(), 2);
        drop((zombies, holder));
        assert_eq!((global.taken(), account.taken(), account.others.load(SeqCst)), (0, 0, 0));
    }

    #[test]
    fn the_global_bound_holds_for_everybody() {
        let global = Arc::<Places>::default();
        let bounds = Bounds { most: 2, most_per_account: 10 };
        let places: Vec<_> = (0..3).map(|_| park(&global, &Arc::default(), bounds, true)).collect();
        assert_eq!(places.iter().filter(|place| place.is_some()).count(), 2);
    }
}
