//! What a request claims: its account and its token, read from its head.
//!
//! [`head`] is how strictly a head is read, [`account`] finds the account, [`token`] the token. Whatever two programs could
//! read in two ways is refused (I8). It asks nobody whether an account exists.

pub mod account;
pub mod fields;
pub mod head;
pub mod token;
