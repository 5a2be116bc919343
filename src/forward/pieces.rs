//! The beginning of a body, in the pieces in which it came. Small ones are copied together: each holds the memory that it was
//! read into, whatever its size.
//!
//! It neither reads nor counts.

use std::collections::VecDeque;

use bytes::Bytes;

/// Pieces that are kept as they came.
const MOST_AS_THEY_CAME: usize = 16;
/// What comes after them in smaller pieces is copied together.
const LARGE: usize = 8 * 1024;

/// Pieces in their order.
#[derive(Debug, Default)]
pub struct Pieces {
    frames: VecDeque<Bytes>,
    /// What came last, in small pieces.
    small: Vec<u8>,
}

impl Pieces {
    /// Keeps one more.
    pub fn push(&mut self, data: Bytes) {
        if self.frames.len() < MOST_AS_THEY_CAME || data.len() >= LARGE {
            self.gather();
            self.frames.push_back(data);
            return;
        }
        self.small.extend_from_slice(&data);
        if self.small.len() >= LARGE {
            self.gather();
        }
    }

    /// All that came.
    pub fn gathered(&mut self) -> &VecDeque<Bytes> {
        self.gather();
        &self.frames
    }

    /// The same, to be sent.
    #[must_use]
    pub fn into_frames(mut self) -> VecDeque<Bytes> {
        self.gather();
        self.frames
    }

    fn gather(&mut self) {
        if !self.small.is_empty() {
            self.frames.push_back(std::mem::take(&mut self.small).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_gathered_in_their_order() {
        for size in [1, 7, 1000, LARGE - 1, LARGE, LARGE + 1] {
            let mut pieces = Pieces::default();
            let whole: Vec<u8> = (0..200_000_u32).map(|at| u8::try_from(at % 251).unwrap()).collect();
            // Every hundredth piece is a large one.
            let (mut rest, mut number) = (whole.as_slice(), 0);
            while !rest.is_empty() {
                number += 1;
                let next = if number % 100 == 0 { LARGE } else { size };
                let (piece, further) = rest.split_at(next.min(rest.len()));
                pieces.push(Bytes::copy_from_slice(piece));
                rest = further;
            }
            let frames = pieces.into_frames();
            assert!(frames.iter().flatten().eq(&whole), "{size}");
            assert!(frames.len() < 100, "{size}: {}", frames.len());
        }
    }
}
