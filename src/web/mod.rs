//! What listeners have in common: accepting within bounds, refusals about the room, and what the process uses.
//!
//! It knows nothing of what is asked.

pub mod aside;
pub mod pages;
pub mod problem;
pub mod process;
pub mod reload;
pub mod server;
