//! What listeners have in common: accepting within bounds, refusals about the room, and the upkeep of metrics.
//!
//! It knows nothing of what is asked.

pub mod problem;
pub mod server;
