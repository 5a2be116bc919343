//! Sessions as leases: who began one, until when it lives, and what proves it.
//!
//! It reads no clock and ends nothing by itself.

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write as _;
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

use super::{Begun, Denied};
use crate::clock::Moment;
use crate::fence::name::AccountName;
use crate::fence::token::SessionId;

/// How many hex digits of a secret are the session's id.
const ID_DIGITS: usize = 16;

pub(super) struct Lease {
    secret: [u8; 32],
    pub(super) instance: String,
    pub(super) ttl: Duration,
    pub(super) deadline: Moment,
    /// The accounts that it stands for.
    pub(super) stands: BTreeSet<AccountName>,
}

/// Never shows a secret.
impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("instance", &self.instance).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
pub(super) struct Leases(HashMap<SessionId, Lease>);

impl Leases {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// How many candidates all other sessions have.
    pub(super) fn candidates_besides(&self, id: SessionId) -> usize {
        self.0.iter().filter(|(other, _)| **other != id).map(|(_, lease)| lease.stands.len()).sum()
    }

    pub(super) fn begin(&mut self, instance: &str, ttl: Duration, now: Moment) -> Result<Begun, Denied> {
        let failed = |_| Denied::Failing("the system has no random numbers");
        let random = SystemRandom::new();
        let (mut id, mut secret) = ([0; 8], [0; 32]);
        random.fill(&mut secret).map_err(failed)?;
        let session = loop {
            random.fill(&mut id).map_err(failed)?;
            let session = SessionId(i64::from_be_bytes(id));
            if session.0 != 0 && !self.0.contains_key(&session) {
                break session;
            }
        };
        let mut shown = String::with_capacity(2 * (id.len() + secret.len()));
        for byte in id.iter().chain(&secret) {
            // Writing to a string does not fail.
            let _ = write!(shown, "{byte:02x}");
        }
        let lease = Lease {
            secret,
            instance: instance.to_owned(),
            ttl,
            deadline: now.after(ttl),
            stands: BTreeSet::new(),
        };
        self.0.insert(session, lease);
        Ok(Begun { session, secret: shown })
    }

    /// The lease that `secret` proves. It takes as long whatever is wrong with the secret of a session.
    pub(super) fn of(&mut self, secret: &str) -> Result<(SessionId, &mut Lease), Denied> {
        let (id, proof) = secret.split_at_checked(ID_DIGITS).ok_or(Denied::Secret)?;
        let id = u64::from_str_radix(id, 16).map_err(|_| Denied::Secret)?;
        let id = SessionId(id.cast_signed());
        let lease = self.0.get_mut(&id).ok_or(Denied::NoSession)?;
        let shown: [u8; 32] = bytes(proof).ok_or(Denied::Secret)?;
        if !bool::from(shown.ct_eq(&lease.secret)) {
            return Err(Denied::Secret);
        }
        Ok((id, lease))
    }

    pub(super) fn remove(&mut self, id: SessionId) {
        self.0.remove(&id);
    }

    /// Takes out what is past its deadline, with its instance.
    pub(super) fn over(&mut self, now: Moment) -> Vec<(SessionId, String)> {
        self.0.extract_if(|_, lease| lease.deadline <= now).map(|(id, lease)| (id, lease.instance)).collect()
    }
}

fn bytes(hex: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if hex.len() != 2 * bytes.len() || !hex.is_ascii() {
        return None;
    }
    for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(hex.get(at..at + 2)?, 16).ok()?;
    }
    Some(bytes)
}
