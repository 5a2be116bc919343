//! What a request claims: its route, its account and its token, read from its head and, where the account is there,
//! its body.
//!
//! [`reading`] puts it together: [`choice`] finds the route, [`account`] the account, [`token`] the token; [`head`] is how strictly a head is read, and
//! [`body`] a body. Whatever two programs could read in two ways is refused (I8). It asks nobody whether an account
//! exists, and shows no identity that is a secret.

pub mod access;
pub mod account;
pub mod alike;
pub mod body;
pub mod choice;
pub mod fields;
pub mod form;
pub mod head;
pub mod json;
pub mod multipart;
pub mod query;
pub mod reading;
pub mod request_id;
pub mod token;
