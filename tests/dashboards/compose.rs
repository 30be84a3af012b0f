//! The stack of containers, checked without an engine: the files and names in its file exist and fit together. `make
//! compose-test` runs it.

use std::path::Path;

use serde_json::Value;

use crate::{read, yaml};

fn compose() -> Value {
    yaml("docker-compose.yml")
}

fn services(compose: &Value) -> impl Iterator<Item = (&String, &Value)> {
    compose["services"].as_object().unwrap().iter()
}

/// The mounts of a service: each path on the host with its path in the container.
fn mounts(service: &Value) -> Vec<(String, String)> {
    let volumes = service["volumes"].as_array().into_iter().flatten();
    volumes
        .map(|volume| {
            let parts: Vec<&str> = volume.as_str().unwrap().split(':').collect();
            assert_eq!(parts.get(2), Some(&"ro"), "{volume}");
            (parts[0].to_owned(), parts[1].to_owned())
        })
        .collect()
}

#[test]
fn every_image_has_a_version_and_every_file_is_there() {
    let compose = compose();
    for (name, service) in services(&compose) {
        let image = service["image"].as_str().unwrap_or_else(|| service["<<"]["image"].as_str().unwrap());
        match image.split_once(':') {
            Some((_, version)) => assert!(
                version.starts_with(|c: char| c.is_ascii_digit() || c == 'v') && version.contains('.'),
                "{image}"
            ),
            None => assert_eq!((image, name.starts_with("gateway")), ("tollgate", true)),
        }
        for (file, _) in mounts(service) {
            assert!(Path::new(&file).exists(), "{name}: {file}");
        }
        let wants = service["depends_on"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let conditions = service["depends_on"].as_object().into_iter().flatten().map(|(name, _)| name.as_str());
        for other in wants.chain(conditions) {
            assert!(compose["services"][other].is_object(), "{name} waits for {other}");
        }
    }
}

#[test]
fn a_gateway_is_not_killed_before_its_requests_have_their_time() {
    let compose = compose();
    assert_eq!(compose["x-gateway"]["stop_grace_period"], "75s");
    assert!(read("docs/containers.md").contains("docker run --publish 8080:8080 --stop-timeout 75 "));
    assert!(read("deploy/systemd/tollgate.service").contains("\nTimeoutStopSec=75s\n"));
}

#[test]
fn the_image_is_built_from_files_that_are_there_and_is_nobodys() {
    let dockerfile = read("Dockerfile");
    let from: Vec<&str> = dockerfile.lines().filter_map(|line| line.strip_prefix("FROM ")).collect();
    assert_eq!(from.last(), Some(&"scratch"), "the image has what is copied and nothing else");
    let (_, kept) = dockerfile.rsplit_once("\nFROM ").unwrap();
    for line in kept.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from")) {
        let words: Vec<&str> = line.split(' ').collect();
        for file in &words[1..words.len() - 1] {
            assert!(Path::new(file).exists(), "{file}");
        }
    }
    assert!(kept.contains("\nUSER 10001\n"), "{kept}");
    assert!(kept.contains("CMD [\"tollgate\", \"health\"]"), "{kept}");
    assert!(kept.contains("config/docker.yaml config/customers.csv /etc/tollgate/"), "{kept}");
}

#[test]
fn the_services_find_each_other() {
    let compose = compose();
    let config = yaml("config/docker.yaml");
    let is_service = |address: &str| {
        let host = address.split([':', '/']).find(|part| compose["services"][*part].is_object());
        assert!(host.is_some(), "no service is at {address}");
    };
    is_service(config["store"]["redis"].as_str().unwrap());
    is_service(config["upstreams"]["sample"]["nodes"][0].as_str().unwrap());
    assert!(read("config/compose/upstream.conf").contains("listen 9000;"));
    let prometheus = yaml("dashboards/prometheus/prometheus.yml");
    let admin = config["admin"]["address"].as_str().unwrap().rsplit(':').next().unwrap();
    let targets = prometheus["scrape_configs"][0]["static_configs"][0]["targets"].as_array().unwrap();
    assert_eq!(targets.len(), 2);
    for target in targets.iter().map(|target| target.as_str().unwrap()) {
        is_service(target);
        assert_eq!(target.rsplit(':').next(), Some(admin));
    }
    let source = yaml("dashboards/grafana/datasources/prometheus.yml");
    is_service(source["datasources"][0]["url"].as_str().unwrap());
    assert_eq!(source["datasources"][0]["jsonData"]["timeInterval"], prometheus["global"]["scrape_interval"]);
    let traffic = compose["services"]["traffic"]["entrypoint"].as_array().unwrap();
    traffic.iter().skip(2).for_each(|gateway| is_service(gateway.as_str().unwrap()));
}

#[test]
fn grafana_finds_the_dashboards_where_they_are_mounted() {
    let compose = compose();
    let grafana = &compose["services"]["grafana"];
    let provider = yaml("dashboards/grafana/dashboards/tollgate.yml");
    let path = provider["providers"][0]["options"]["path"].as_str().unwrap();
    assert!(mounts(grafana).contains(&("./dashboards".to_owned(), path.to_owned())));
    assert!(mounts(grafana).contains(&("./dashboards/grafana".to_owned(), "/etc/grafana/provisioning".to_owned())));
    let home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"].as_str().unwrap();
    assert!(Path::new("dashboards").join(home.strip_prefix(path).unwrap().trim_start_matches('/')).exists(), "{home}");
    let prometheus = &compose["services"]["prometheus"];
    assert!(mounts(prometheus).contains(&("./dashboards/prometheus".to_owned(), "/etc/prometheus".to_owned())));
}
