//! What is allowed to be forwarded: a permit, or a place beside the fence in shadow and pass mode.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::HeaderValue;

use super::admission::{Admission, Unjudged};
use super::entry::{Entry, Send};
use super::outgoing::Sender;
use super::service::{Gateway, Route};
use crate::code::Code;
use crate::config::Mode;
use crate::fence::token::Claim;
use crate::forward::{Authority, Stop};
use crate::telemetry::Verdict;

/// The right to forward one request.
#[derive(Debug)]
pub(super) enum Allowed {
    /// By a verdict.
    Judged(Admission),
    /// By the route's mode: `would` is the verdict that shadow mode only tells.
    Unjudged { place: Unjudged, account: String, would: Option<&'static str> },
}

impl Allowed {
    /// Shadow and pass: everything is forwarded; in shadow mode the verdict is counted beside, by the view as it is.
    pub(super) fn unjudged(
        gateway: &Gateway,
        route: &Route,
        account: &str,
        entry: Option<&Arc<Entry>>,
        claim: Option<&Claim>,
        send: &Arc<Send>,
    ) -> Result<Self, Code> {
        let would = (route.config.mode == Mode::Shadow).then(|| {
            let code = match (claim, entry) {
                (None, _) => Some(Code::MissingToken),
                (Some(_), None) => Some(Code::UnknownAccount),
                (Some(claim), Some(entry)) => {
                    entry.state().account.preview(claim, None).and_then(Result::err)
                }
            };
            if let Some(code) = code {
                gateway.registry.reject_shadow(entry.map(Arc::as_ref), code);
            }
            code.map_or("admitted", Code::as_str)
        });
        let most = gateway.rules.most_in_flight_per_account;
        let place = Unjudged::enter(&gateway.registry, entry.map(Arc::as_ref), Arc::clone(send), most)
            .ok_or(Code::Overloaded)?;
        Ok(Self::Unjudged { place, account: account.to_owned(), would })
    }

    /// Whether it is a permit.
    pub(super) fn is_judged(&self) -> bool {
        matches!(self, Self::Judged(_))
    }

    /// What is counted.
    pub(super) fn verdict(&self) -> Verdict {
        match self {
            Self::Judged(_) => Verdict::Admitted,
            Self::Unjudged { would: Some(_), .. } => Verdict::Shadow,
            Self::Unjudged { would: None, .. } => Verdict::Passed,
        }
    }

    /// What the sender is told.
    pub(super) fn sender(&self) -> Sender<'_> {
        match self {
            Self::Judged(admission) => Sender::Holder(&admission.identity),
            Self::Unjudged { account, .. } => Sender::Unjudged(account),
        }
    }

    /// Whose it is.
    pub(super) fn account(&self) -> HeaderValue {
        match self {
            Self::Judged(admission) => admission.identity.account.clone(),
            // A name is visible ASCII.
            Self::Unjudged { account, .. } => {
                HeaderValue::from_str(account).unwrap_or(HeaderValue::from_static("-"))
            }
        }
    }

    /// What the caller is told: `X-Fencing-Verdict`.
    pub(super) fn header(&self) -> HeaderValue {
        match self {
            Self::Judged(_) => HeaderValue::from_static("admitted"),
            Self::Unjudged { would: None, .. } => HeaderValue::from_static("passed"),
            Self::Unjudged { would: Some(code), .. } => {
                HeaderValue::from_str(&format!("shadow; would={code}"))
                    .unwrap_or(HeaderValue::from_static("shadow"))
            }
        }
    }
}

impl Authority for Allowed {
    fn allow(&self, total: Duration) {
        match self {
            Self::Judged(admission) => admission.allow(total),
            Self::Unjudged { place, .. } => place.allow(total),
        }
    }

    fn begin(&self) -> Result<(), Code> {
        match self {
            Self::Judged(admission) => admission.begin(),
            Self::Unjudged { place, .. } => place.begin(),
        }
    }

    fn unbegin(&self) {
        match self {
            Self::Judged(admission) => admission.unbegin(),
            Self::Unjudged { place, .. } => place.unbegin(),
        }
    }

    fn poll_stop(&self, cx: &mut Context<'_>) -> Poll<Stop> {
        match self {
            Self::Judged(admission) => admission.poll_stop(cx),
            Self::Unjudged { place, .. } => place.poll_stop(cx),
        }
    }
}
