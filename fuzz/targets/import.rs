//! Configurations of other rate limit services: they are refused, or what is written of them passes the check. Of nginx's, the
//! values (addresses, names, numbers) are copied, so that the check may refuse what is written; `tollgate import` tells that.

use tollgate::config;
use tollgate::config::import::Import;

pub(crate) fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let mut import = Import::default();
    match import.add(text, "f") {
        Ok(()) => {
            let written = import.to_yaml();
            if let Err(problems) = config::load(&written, "w", &|_| None) {
                // it is a few levels deeper than what was read
                let is_too_deep = problems.errors.iter().all(|problem| problem.message.contains("levels deep"));
                assert!(is_too_deep || written.contains("docs/import.md"), "{problems}\n{written}");
            }
        }
        Err(problems) => assert!(!problems.errors.is_empty()),
    }
}
