//! The codes of the contract: what a refusal or failure is called, its status, and what it says of the outcome.
//!
//! One table. It decides nothing and writes nothing.

/// What is known of a send that the gateway answered itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The sender saw no byte of the request.
    NotSent,
    /// The sender may have seen it.
    Unknown,
}

impl Outcome {
    /// As headers and bodies spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NotSent => "not_sent",
            Self::Unknown => "unknown",
        }
    }
}

macro_rules! codes {
    ($($variant:ident $name:literal $status:literal $title:literal;)*) => {
        /// A code of the contract.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each is described by its title")]
        pub enum Code { $($variant,)* }

        impl Code {
            /// Every code, in the order of the contract's table.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// As headers, bodies and labels spell it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The HTTP status it is answered with.
            #[must_use]
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)* }
            }

            /// RFC 9457's `title`.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }

            /// RFC 9457's `type`.
            #[must_use]
            pub const fn urn(self) -> &'static str {
                match self { $(Self::$variant => concat!("urn:fencegate:", $name),)* }
            }
        }
    };
}

codes! {
    MalformedRequest "malformed_request" 400 "The request is malformed";
    MalformedPath "malformed_path" 400 "The path could be read in two ways";
    MalformedAccount "malformed_account" 400 "The account is missing, malformed or ambiguous";
    MalformedToken "malformed_token" 400 "The fencing token is malformed";
    Unauthenticated "unauthenticated" 401 "The key is missing or unknown";
    AccountForbidden "account_forbidden" 403 "The key is not for this account";
    Denied "denied" 403 "The route refuses everything";
    NoRoute "no_route" 404 "No route matches";
    UnknownAccount "unknown_account" 404 "The account has no election";
    MethodNotAllowed "method_not_allowed" 405 "The method is not allowed";
    BodyTimeout "body_timeout" 408 "The body did not arrive in time";
    StaleToken "stale_token" 409 "An older holder's token";
    SessionMismatch "session_mismatch" 409 "Another session holds with this number";
    NotHolder "not_holder" 409 "This candidate does not hold the account";
    InstanceMismatch "instance_mismatch" 409 "Another instance holds with this number";
    EpochMismatch "epoch_mismatch" 409 "Another term of the same candidate";
    NoHolder "no_holder" 409 "Nobody holds the account";
    InvalidHolder "invalid_holder" 409 "The account's holder does not count";
    Superseded "superseded" 409 "The holder changed before the send began";
    BodyTooLarge "body_too_large" 413 "The body is too large";
    UnsupportedBody "unsupported_body" 415 "The body cannot be read for its account";
    ExpectationFailed "expectation_failed" 417 "The expectation is not supported";
    MissingToken "missing_token" 428 "The fencing token is missing";
    HeadersTooLarge "headers_too_large" 431 "The headers are too large";
    UpstreamUnreachable "upstream_unreachable" 503 "The sender cannot be reached";
    ViewUnproven "view_unproven" 503 "The elections could not be proven current in time";
    HistoryReset "history_reset" 503 "ZooKeeper's history went back";
    Overloaded "overloaded" 503 "A limit of the gateway is reached";
    ShuttingDown "shutting_down" 503 "The gateway is shutting down";
    Internal "internal" 500 "The gateway failed";
    UpstreamFailed "upstream_failed" 502 "The exchange with the sender broke";
    UpstreamTimeout "upstream_timeout" 504 "The sender did not answer in time";
    HandoverCut "handover_cut" 504 "Cut, because a new holder follows";
    ShutdownCut "shutdown_cut" 504 "Cut, because the gateway shut down";
}

impl Code {
    /// 500, 502 and 504 are unknown; everything else is not_sent.
    #[must_use]
    pub const fn outcome(self) -> Outcome {
        match self.status() {
            500 | 502 | 504 => Outcome::Unknown,
            _ => Outcome::NotSent,
        }
    }

    /// Its place in [`Code::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contract's table, line by line: codes, status and outcome.
    const TABLE: &[(&[&str], u16, &str)] = &[
        (&["malformed_request", "malformed_path", "malformed_account", "malformed_token"], 400, "not_sent"),
        (&["unauthenticated"], 401, "not_sent"),
        (&["account_forbidden", "denied"], 403, "not_sent"),
        (&["no_route", "unknown_account"], 404, "not_sent"),
        (&["method_not_allowed"], 405, "not_sent"),
        (&["body_timeout"], 408, "not_sent"),
        (&["stale_token", "session_mismatch", "not_holder", "instance_mismatch"], 409, "not_sent"),
        (&["epoch_mismatch", "no_holder", "invalid_holder", "superseded"], 409, "not_sent"),
        (&["body_too_large"], 413, "not_sent"),
        (&["unsupported_body"], 415, "not_sent"),
        (&["expectation_failed"], 417, "not_sent"),
        (&["missing_token"], 428, "not_sent"),
        (&["headers_too_large"], 431, "not_sent"),
        (&["upstream_unreachable", "view_unproven", "history_reset"], 503, "not_sent"),
        (&["overloaded", "shutting_down"], 503, "not_sent"),
        (&["internal"], 500, "unknown"),
        (&["upstream_failed"], 502, "unknown"),
        (&["upstream_timeout", "handover_cut", "shutdown_cut"], 504, "unknown"),
    ];

    #[test]
    fn every_code_has_the_status_and_the_outcome_of_the_contract() {
        let mut lines = 0;
        for (names, status, outcome) in TABLE {
            for name in *names {
                let code = Code::ALL.iter().find(|code| code.as_str() == *name).expect(name);
                assert_eq!((code.status(), code.outcome().as_str()), (*status, *outcome), "{name}");
                assert_eq!(code.urn(), format!("urn:fencegate:{name}"));
                assert!(!code.title().is_empty() && !code.title().ends_with('.'), "{name}");
                lines += 1;
            }
        }
        assert_eq!(lines, Code::ALL.len(), "no code besides the contract's");
    }

    #[test]
    fn a_503_is_always_not_sent_and_an_unknown_outcome_is_never_a_503() {
        for code in Code::ALL {
            let unknown = code.outcome() == Outcome::Unknown;
            assert_eq!(unknown, matches!(code.status(), 500 | 502 | 504), "{code:?}");
        }
    }

    #[test]
    fn a_code_stands_at_its_index() {
        for (index, code) in Code::ALL.iter().enumerate() {
            assert_eq!(code.index(), index);
        }
    }
}
