//! Prometheus' text format, read back.

use std::collections::BTreeMap;

/// One line of a scrape.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// With the suffix of histograms (`_bucket`, `_sum`, `_count`).
    pub name: String,
    /// Unescaped.
    pub labels: BTreeMap<String, String>,
    /// As it stands.
    pub value: f64,
}

/// One scrape.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Vec<Sample>);

impl Metrics {
    /// Reads a scrape; panics at a line that is none.
    #[track_caller]
    pub fn parse(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self(lines.map(|line| sample(line).unwrap_or_else(|| panic!("not a sample: {line:?}"))).collect())
    }

    /// Every sample.
    pub fn samples(&self) -> &[Sample] {
        &self.0
    }

    /// Whether any sample has this name.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|sample| sample.name == name)
    }

    /// The samples of a name that carry these labels.
    pub fn select<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&str, &str)],
    ) -> impl Iterator<Item = &'a Sample> {
        let carries = move |sample: &Sample| {
            labels.iter().all(|(key, value)| sample.labels.get(*key).is_some_and(|have| have == value))
        };
        self.0.iter().filter(move |sample| sample.name == name && carries(sample))
    }

    /// Their sum; zero where none carries these labels. Without labels the name must be there.
    #[track_caller]
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        assert!(!labels.is_empty() || self.has(name), "no metric {name}");
        self.select(name, labels).map(|sample| sample.value).sum()
    }
}

fn sample(line: &str) -> Option<Sample> {
    let end = line.find(['{', ' '])?;
    let (name, rest) = line.split_at(end);
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => labels(inside)?,
        None => (BTreeMap::new(), rest),
    };
    let value = rest.split_whitespace().next()?.parse().ok()?;
    Some(Sample { name: name.to_owned(), labels, value })
}

/// The labels after an opening brace, and what follows the closing one.
fn labels(mut text: &str) -> Option<(BTreeMap<String, String>, &str)> {
    let mut labels = BTreeMap::new();
    loop {
        text = text.trim_start_matches([',', ' ']);
        if let Some(rest) = text.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (key, rest) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut letters = rest.char_indices();
        let end = loop {
            match letters.next()? {
                (at, '"') => break at,
                (_, '\\') => value.push(match letters.next()?.1 {
                    'n' => '\n',
                    other => other,
                }),
                (_, letter) => value.push(letter),
            }
        };
        labels.insert(key.to_owned(), value);
        text = &rest[end + 1..];
    }
}
