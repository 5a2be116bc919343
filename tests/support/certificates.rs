//! An authority of our own, and certificates that it signs, made by openssl.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::place::Folder;

/// An authority that nobody else knows.
pub struct Authority {
    folder: Folder,
}

/// A certificate and its key, as files.
#[derive(Clone, Debug)]
pub struct Certificate {
    /// PEM.
    pub cert: PathBuf,
    /// PEM.
    pub key: PathBuf,
}

impl Authority {
    /// Makes one.
    #[track_caller]
    pub fn new(name: &str) -> Self {
        let authority = Self { folder: Folder::new("authority") };
        authority.make(
            "ca",
            name,
            "basicConstraints = critical,CA:TRUE\nkeyUsage = critical,keyCertSign,cRLSign",
            &[],
        );
        authority
    }

    /// Its own certificate.
    pub fn cert(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// A certificate for names such as `DNS:localhost,IP:127.0.0.1`, in files of this name.
    #[track_caller]
    pub fn sign(&self, file: &str, names: &str) -> Certificate {
        let (ca, key) = (self.cert(), self.folder.join("ca.key"));
        let signed = ["-CA", ca.to_str().unwrap(), "-CAkey", key.to_str().unwrap()];
        let extensions = format!("basicConstraints = critical,CA:FALSE\nsubjectAltName = {names}");
        self.make(file, file, &extensions, &signed)
    }

    /// Signs a certificate again, for a time that is over.
    #[track_caller]
    pub fn let_run_out(&self, certificate: &Certificate) {
        let run = |arguments: &[&Path]| {
            let output = Command::new("openssl").arg("x509").args(arguments).output();
            let output = output.expect("openssl runs: apt-get install openssl");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        };
        let Certificate { cert, key } = certificate;
        let (request, config) = (cert.with_extension("csr"), cert.with_extension("cnf"));
        let (ca, ca_key) = (self.cert(), self.folder.join("ca.key"));
        let word = Path::new::<str>;
        run(&[word("-x509toreq"), word("-in"), cert, word("-signkey"), key, word("-out"), &request]);
        let signed =
            [word("-CA"), &ca, word("-CAkey"), &ca_key, word("-days"), word("-1"), word("-out"), cert];
        let extensions = [word("-extfile"), &config, word("-extensions"), word("extensions")];
        run(&[&[word("-req"), word("-in"), &request], &signed[..], &extensions[..]].concat());
    }

    fn make(&self, file: &str, common_name: &str, extensions: &str, more: &[&str]) -> Certificate {
        let config = format!(
            "[req]\ndistinguished_name = name\nprompt = no\n[name]\nCN = {common_name}\n[extensions]\n{extensions}\n"
        );
        let config = self.folder.write(&format!("{file}.cnf"), config);
        let made = Certificate {
            cert: self.folder.join(&format!("{file}.pem")),
            key: self.folder.join(&format!("{file}.key")),
        };
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]);
        command.args(["-days", "30", "-extensions", "extensions", "-config"]).arg(config);
        command.arg("-keyout").arg(&made.key).arg("-out").arg(&made.cert).args(more);
        let output = command.output().expect("openssl runs: apt-get install openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        made
    }
}

impl Certificate {
    /// Puts this one where another one is.
    pub fn replace(&self, other: &Self) {
        fs::copy(&self.cert, &other.cert).unwrap();
        fs::copy(&self.key, &other.key).unwrap();
    }
}

/// A path as an argument.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
