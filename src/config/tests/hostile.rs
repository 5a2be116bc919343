//! Text that nobody would write: it is refused with a place, and never panics.

use super::*;

/// Small, and the same everywhere: a failure names the seed that repeats it.
struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % most
    }
}

#[test]
fn no_text_panics_and_every_refusal_has_a_place() {
    const PIECES: [&str; 24] = [
        "[",
        "]",
        "{",
        "}",
        "\"",
        "'",
        "=",
        "\n",
        ".",
        ",",
        "#",
        "%",
        "/",
        "*",
        "..",
        "0",
        "-1",
        "ß",
        "\u{0}",
        "[[route]]\n",
        "\u{10ffff}",
        "\"\"\"",
        "1e9",
        "@",
    ];
    let base: Vec<char> = shipped_with_defaults().chars().collect();
    for seed in 0..3000 {
        let mut random = Random(seed);
        let mut text = base.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(text.len());
            let end = (at + random.below(12)).min(text.len());
            let piece = PIECES[random.below(PIECES.len())];
            text.splice(at..end, piece.chars());
        }
        let text: String = text.into_iter().collect();
        let lines = text.lines().count();
        let outcome = std::panic::catch_unwind(|| parse("f", &text, []));
        let outcome = outcome.unwrap_or_else(|_| panic!("seed {seed} panics"));
        for problem in outcome.err().iter().flat_map(ConfigError::problems) {
            let mut place = problem.split(':');
            assert_eq!(place.next(), Some("f"), "seed {seed}: {problem}");
            let line: usize = place.next().unwrap().parse().unwrap();
            let column: usize = place.next().unwrap().parse().unwrap();
            assert!((1..=lines + 1).contains(&line) && column > 0, "seed {seed}: {problem}");
            assert!(!problem.contains('\n'), "seed {seed}");
        }
    }
}

#[test]
fn no_value_of_any_key_panics() {
    const VALUES: [&str; 22] = [
        "0",
        "-1",
        "1.5",
        "nan",
        "true",
        "\"\"",
        "\"x\"",
        "\"/\"",
        "\"{\"",
        "\"/{a}/{*b}\"",
        "\":\"",
        "\"0ms\"",
        "\"99999999999999999999s\"",
        "\"99999999999999999999TiB\"",
        "[]",
        "[[]]",
        "{}",
        "[{}]",
        "{ a = { b = [1] } }",
        "2020-01-01",
        "\"\\u0000\"",
        "\"é%\"",
    ];
    let text = shipped_with_defaults();
    for (number, line) in text.lines().enumerate() {
        let Some((key, _)) = line.split_once(" = ") else { continue };
        for value in VALUES {
            let replaced: Vec<_> = text
                .lines()
                .enumerate()
                .map(|(n, l)| if n == number { format!("{key} = {value}") } else { l.to_owned() })
                .collect();
            let _ = parse("f", &replaced.join("\n"), []);
            let name = format!("FENCEGATE__LIMITS__{key}");
            let _ = parse("f", &text, [(name, value.to_owned())]);
            let name = format!("FENCEGATE__ROUTE__0__{key}");
            let _ = parse("f", &text, [(name, value.trim_matches('"').to_owned())]);
        }
    }
}
