//! What the documents say is what the code does: the README's table of codes, and the names of metrics it may use.

use std::collections::BTreeMap;

use fencegate::code::Code;

const README: &str = include_str!("../README.md");

/// Code to status and outcome, as the README's table has them.
fn table() -> BTreeMap<&'static str, (&'static str, &'static str)> {
    README
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| `")?.split('|').map(str::trim);
            let code = cells.next()?.trim_end_matches('`');
            let (status, outcome) = (cells.next()?, cells.next()?);
            status.parse::<u16>().is_ok().then_some((code, (status, outcome)))
        })
        .collect()
}

#[test]
fn the_readme_lists_every_code_with_its_status_and_outcome() {
    let table = table();
    for code in Code::ALL {
        let (status, outcome) = table.get(code.as_str()).unwrap_or_else(|| panic!("{code:?} is missing"));
        assert_eq!(*status, code.status().to_string(), "{code:?}");
        assert_eq!(*outcome, code.outcome().as_str(), "{code:?}");
    }
    assert_eq!(table.len(), Code::ALL.len(), "the README lists a code that does not exist");
}

#[test]
fn every_file_that_a_document_links_to_is_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"] {
        let text = std::fs::read_to_string(root.join(document)).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if !link.contains("://") && !link.starts_with('#') {
                assert!(root.join(link).exists(), "{document} links to {link}");
            }
        }
        for path in text.split('`').skip(1).step_by(2).filter(|word| word.starts_with("src/")) {
            assert!(root.join(path).exists(), "{document} names {path}");
        }
    }
}
