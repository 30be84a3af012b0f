//! The settings of listeners, from the configuration and the files that it names.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::name;
use super::named_files::{Files, Refused, all_read};
use crate::clock::{Clock, SystemClock};
use crate::config::{CertificateFiles, ListenerTls, NamedFile, Problem, Server};
use crate::http::listener::ListenerConfig;
use crate::ruleset::Endpoint;
use crate::tls::{self, Certificate, Certificates, ClientCertificates, ClientTlsTerms, TlsFault, TlsServer};
use crate::units::Nanos;

/// Bits of a file's mode that let others than its owner read or change it.
const OTHERS: u32 = 0o077;

/// Reads the TLS files of the listeners. The addresses are sorted, so that their order in the file does not matter: sockets
/// refer to listeners by position.
pub(super) fn open(
    server: &Server,
    files: &mut Files<'_>,
) -> Result<(Vec<Endpoint>, Vec<Arc<ListenerConfig>>), Refused> {
    let mut reading = TlsFileReader { files, now: SystemClock::new().now() };
    let mut listeners = all_read(server.listeners.iter().map(|listener| {
        let config = ListenerConfig {
            tls: listener.tls.as_ref().map(|tls| reading.tls(tls, listener.http2)).transpose()?,
            serves: listener.serves,
            http2: listener.http2,
            proxy_protocol: listener.proxy_protocol.clone(),
            max_connections: listener.max_connections,
        };
        Ok((listener.address.clone(), Arc::new(config)))
    }))?;
    listeners.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(listeners.into_iter().unzip())
}

/// A reader of the files of certificates, which adds warnings about them.
struct TlsFileReader<'r, 'f> {
    files: &'r mut Files<'f>,
    now: Nanos,
}

impl TlsFileReader<'_, '_> {
    fn tls(&mut self, configured: &ListenerTls, http2: bool) -> Result<TlsServer, Refused> {
        let certificates = all_read(configured.certificates.iter().map(|files| self.certificate(files)));
        let clients = configured.client_certificates.as_ref();
        let authorities = clients.map(|clients| self.files.pem(&clients.ca)).transpose();
        let certificates = Certificates::new(certificates?);
        self.warn_of_hidden(&certificates, configured);
        let authorities = authorities?;
        let accepted = clients.zip(authorities.as_ref());
        let accepted =
            accepted.map(|(clients, authorities)| ClientCertificates { authorities, required: clients.required });
        let terms = ClientTlsTerms { clients: accepted, allows_1_2: configured.allows_1_2, offers_http2: http2 };
        tls::server(certificates, terms).map_err(|fault| match clients {
            Some(clients) => self.refuse(&clients.ca, fault),
            None => self.files.refuse(Problem::error(configured.place.clone(), fault.to_string())),
        })
    }

    fn certificate(&mut self, files: &CertificateFiles) -> Result<Certificate, Refused> {
        let (cert, key) = (self.files.pem(&files.cert), self.files.pem(&files.key));
        self.warn_of_readers(&files.key);
        let certificate = Certificate::read(&cert?, &key?)
            .map_err(|fault| self.refuse(if fault.is_in_key() { &files.key } else { &files.cert }, fault))?;
        self.warn_of_times(&certificate, &files.cert);
        Ok(certificate)
    }

    fn refuse(&mut self, named: &NamedFile, fault: TlsFault) -> Refused {
        self.files.refuse(self.files.unfit(named, fault).hint(fault.hint().map(str::to_owned)))
    }

    /// Warns of a certificate that has expired or is not valid yet. Clients refuse it, but that is no error here: a gateway
    /// that runs tells operators more than one that does not start.
    fn warn_of_times(&mut self, certificate: &Certificate, named: &NamedFile) {
        let (begin, end) = certificate.valid();
        let says = if end <= self.now {
            format!("expired at {}", when(end))
        } else if begin > self.now {
            format!("is not valid before {}", when(begin))
        } else {
            return;
        };
        let problem = Problem::warning(named.place.clone(), format!("names a certificate that {says}"));
        self.files.warnings.push(problem.found(name(&self.files.path(named))).hint("clients will refuse it"));
    }

    fn warn_of_readers(&mut self, key: &NamedFile) {
        let file = self.files.path(key);
        let Ok(mode) = std::fs::metadata(&file).map(|metadata| metadata.mode()) else { return };
        if mode & OTHERS != 0 {
            let problem =
                Problem::warning(key.place.clone(), "names a private key that others than its owner may read");
            let found = format!("{} with mode {:04o}", name(&file), mode & 0o7777);
            self.files.warnings.push(problem.found(found).hint(format!("`chmod 600 {}`", name(&file))));
        }
    }

    fn warn_of_hidden(&mut self, certificates: &Certificates, configured: &ListenerTls) {
        let files = certificates.never_shown().filter_map(|position| configured.certificates.get(position));
        let warn = |files: &CertificateFiles| {
            let problem = Problem::warning(files.cert.place.clone(), "names a certificate that no client is shown");
            problem.hint("each of its names stands in an earlier one, or it has none")
        };
        self.files.warnings.extend(files.map(warn));
    }
}

fn when(time: Nanos) -> String {
    let seconds = i64::try_from(time.secs_ceil()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "a time far away".to_owned(), |time| time.to_string())
}
