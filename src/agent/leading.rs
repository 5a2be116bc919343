//! The authority to send: that the account is led, in the term of the token that the request carries.
//!
//! Asked immediately before the first byte. Once a byte may have been written the send goes on: the gateway fences it.

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;

use super::room::Room;
use crate::code::Code;
use crate::elector::{Elector, Token};
use crate::fence::name::AccountName;
use crate::forward::{Authority, Stop};

/// One send's authority, and its place.
#[derive(Debug)]
pub(super) struct Leading {
    elector: Elector,
    account: AccountName,
    token: Token,
    deadline: Mutex<Option<Pin<Box<Sleep>>>>,
    _room: Room,
}

impl Leading {
    pub(super) fn new(elector: Elector, account: AccountName, token: Token, room: Room) -> Self {
        Self { elector, account, token, deadline: Mutex::default(), _room: room }
    }
}

impl Authority for Leading {
    fn allow(&self, total: Duration) {
        let deadline = Box::pin(tokio::time::sleep(total));
        *self.deadline.lock().unwrap_or_else(PoisonError::into_inner) = Some(deadline);
    }

    fn begin(&self) -> Result<(), Code> {
        match self.elector.token(self.account.as_str()) {
            Ok(token) if token == self.token => Ok(()),
            Ok(_) | Err(_) => Err(Code::Superseded),
        }
    }

    fn unbegin(&self) {}

    fn poll_stop(&self, cx: &mut Context<'_>) -> Poll<Stop> {
        let mut deadline = self.deadline.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *deadline {
            Some(deadline) => deadline.as_mut().poll(cx).map(|()| Stop::Late),
            None => Poll::Pending,
        }
    }
}
