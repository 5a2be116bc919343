//! What the process uses, from `/proc/self`. Where there is none, nothing is known.

/// Resources used at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    /// Of user and system.
    pub cpu_seconds: f64,
    /// In memory.
    pub resident_bytes: u64,
}

/// Processor time and memory.
#[must_use]
pub fn usage() -> Option<Usage> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let ticks_per_second = rustix::param::clock_ticks_per_second();
    parse(&stat, ticks_per_second, u64::try_from(rustix::param::page_size()).ok()?)
}

/// How many file descriptors are open.
#[must_use]
pub fn open_fds() -> Option<u64> {
    let count = std::fs::read_dir("/proc/self/fd").ok()?.count();
    // The one that lists them is among them.
    u64::try_from(count).ok()?.checked_sub(1)
}

fn parse(stat: &str, ticks_per_second: u64, page: u64) -> Option<Usage> {
    // The program's name may contain anything, parentheses and spaces too; what follows it are numbers, of which the
    // first is the third field of proc(5).
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let ticks = field(14)?.checked_add(field(15)?)?;
    #[allow(clippy::cast_precision_loss, reason = "2^53 ticks are three million years")]
    let cpu_seconds = ticks as f64 / ticks_per_second as f64;
    Some(Usage { cpu_seconds, resident_bytes: field(24)?.checked_mul(page)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 1000 0 0 0 250 50 0 0 20 0 9 0 1234 1000000 2048 18446744073709551615 1";
        assert_eq!(parse(stat, 100, 4096), Some(Usage { cpu_seconds: 3.0, resident_bytes: 2048 * 4096 }));
        assert_eq!(parse("42 (short) S 1", 100, 4096), None);
        assert_eq!(parse("", 100, 4096), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_uses_memory_and_descriptors() {
        assert!(usage().is_some_and(|usage| usage.resident_bytes > 0));
        assert!(open_fds().is_some_and(|fds| fds > 0));
    }
}
