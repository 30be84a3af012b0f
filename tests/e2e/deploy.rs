//! The files for deployment are correct: the program accepts the arguments, the ports and paths exist, the configuration is
//! valid, and the times fit.

use std::fs;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::json;
use serde_yaml::{Mapping, Value};
use tollgate::config::{Listener, Server};
use tollgate::runtime::GRACE_PERIOD;

use crate::support::gateway::is_ready;
use crate::support::process::Process;
use crate::support::redis::Redis;
use crate::support::{Client, Folder, Origin, free_port, wait_for, wait_until};

const MANIFEST: &str = "deploy/kubernetes/tollgate.yaml";
const UNIT: &str = "deploy/systemd/tollgate.service";
const SOCKET: &str = "deploy/systemd/tollgate.socket";
const CREDENTIALS: &str = "deploy/systemd/tollgate.service.d/credentials.conf";

fn tollgate(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tollgate")).args(args).output().unwrap()
}

/// Asserts that the program accepts these arguments of `run`, whatever the result.
#[track_caller]
fn takes(args: &[&str], config: &str) {
    assert!(args.contains(&config), "{args:?}");
    let nowhere: Vec<&str> =
        args.iter().map(|arg| if *arg == config { "/nowhere/tollgate.yaml" } else { arg }).collect();
    let output = tollgate(&nowhere);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(1) && said.contains("/nowhere/tollgate.yaml: cannot be read"), "{said}");
}

// === Kubernetes ===

fn objects(manifest: &str) -> Vec<Value> {
    let documents = serde_yaml::Deserializer::from_str(manifest);
    documents.map(|document| serde::Deserialize::deserialize(document).unwrap()).collect()
}

/// The object of this kind in the manifest.
fn object(kind: &str) -> Value {
    only(kind, objects(&fs::read_to_string(MANIFEST).unwrap()))
}

fn only(kind: &str, objects: Vec<Value>) -> Value {
    let mut found = objects.into_iter().filter(|object| object["kind"] == kind);
    let object = found.next().unwrap_or_else(|| panic!("no {kind}"));
    assert!(found.next().is_none(), "{kind} twice");
    object
}

fn pod() -> Value {
    object("Deployment")["spec"]["template"]["spec"].clone()
}

fn container() -> Value {
    pod()["containers"][0].clone()
}

fn strings(list: &Value) -> Vec<String> {
    list.as_sequence().unwrap().iter().map(|item| item.as_str().unwrap().to_owned()).collect()
}

/// The port of the container with this name.
fn port(name: &Value) -> u16 {
    let ports = container()["ports"].clone();
    let port = ports.as_sequence().unwrap().iter().find(|port| port["name"] == *name).cloned();
    u16::try_from(port.unwrap_or_else(|| panic!("no port {name:?}"))["containerPort"].as_u64().unwrap()).unwrap()
}

fn config() -> String {
    object("ConfigMap")["data"]["tollgate.yaml"].as_str().unwrap().to_owned()
}

/// The only environment variable of the container, which holds the address of Redis.
fn redis_variable() -> (String, String) {
    let variables = container()["env"].clone();
    let [variable] = variables.as_sequence().unwrap().as_slice() else { panic!("{variables:?}") };
    let [name, value] = ["name", "value"].map(|field| variable[field].as_str().unwrap().to_owned());
    (name, value)
}

/// Writes a mounted directory as Kubernetes does: a symbolic link switches to the new version.
fn mount(at: &Path, version: u32, files: &Value) {
    let directory = at.join(format!("..v{version}"));
    fs::create_dir_all(&directory).unwrap();
    for (name, text) in files.as_mapping().unwrap() {
        let name = name.as_str().unwrap();
        fs::write(directory.join(name), text.as_str().unwrap()).unwrap();
        if version == 1 {
            symlink(format!("..data/{name}"), at.join(name)).unwrap();
        }
    }
    symlink(format!("..v{version}"), at.join("..data_tmp")).unwrap();
    fs::rename(at.join("..data_tmp"), at.join("..data")).unwrap();
}

/// Mounts the config map and the secret below `folder`, at the container's paths; returns the path of the configuration.
fn mounted(folder: &Path, config: &Value) -> PathBuf {
    let container = container();
    let args = strings(&container["args"]);
    let volumes = pod()["volumes"].clone();
    let mounts = container["volumeMounts"].as_sequence().unwrap().clone();
    assert_eq!(mounts.len(), 2);
    for mount_ in mounts {
        let volume =
            volumes.as_sequence().unwrap().iter().find(|volume| volume["name"] == mount_["name"]).unwrap().clone();
        let files = match (volume["configMap"]["name"].as_str(), volume["secret"]["secretName"].as_str()) {
            (Some(name), None) if object("ConfigMap")["metadata"]["name"] == name => config.clone(),
            (None, Some(name)) if object("Secret")["metadata"]["name"] == name => {
                object("Secret")["stringData"].clone()
            }
            other => panic!("{other:?}"),
        };
        let at = folder.join(mount_["mountPath"].as_str().unwrap().trim_start_matches('/'));
        assert!(mount_["subPath"].is_null(), "would not follow what changes");
        mount(&at, 1, &files);
    }
    folder.join(args.last().unwrap().trim_start_matches('/'))
}

#[test]
fn the_manifest_starts_the_program_and_its_parts_find_each_other() {
    let container = container();
    let args = strings(&container["args"]);
    takes(&args.iter().map(String::as_str).collect::<Vec<_>>(), "/etc/tollgate/config/tollgate.yaml");
    let (variable, redis) = redis_variable();
    let environment = |name: &str| (name == variable).then(|| redis.clone());
    let loaded = tollgate::config::load(&config(), "tollgate.yaml", &environment).unwrap();
    let Server { listeners, admin, .. } = loaded.server;
    let trusted = &loaded.ruleset.client_address.trusted_proxies;
    assert!(trusted.is_empty(), "any pod reaches the port: {trusted:?}");
    assert_eq!(object("Secret")["stringData"]["customers.csv"].as_str(), Some("credential,customer,plan\n"));
    assert_eq!(listeners, [Listener::plain(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port(&"http".into()))))]);
    assert_eq!(admin, SocketAddr::from((Ipv4Addr::UNSPECIFIED, port(&"admin".into()))), "probes come from outside");
    for probe in ["readinessProbe", "livenessProbe"] {
        assert_eq!(port(&container[probe]["httpGet"]["port"]), admin.port(), "{probe}");
    }
    let deployment = object("Deployment");
    let annotations = &deployment["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations["prometheus.io/port"], admin.port().to_string().as_str());

    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    let selectors = [
        deployment["spec"]["selector"]["matchLabels"].clone(),
        object("Service")["spec"]["selector"].clone(),
        object("PodDisruptionBudget")["spec"]["selector"]["matchLabels"].clone(),
        object("NetworkPolicy")["spec"]["podSelector"]["matchLabels"].clone(),
    ];
    assert!(selectors.iter().all(|selector| selector == labels && !labels.is_null()), "{selectors:?}");
    assert_eq!(port(&object("Service")["spec"]["ports"][0]["targetPort"]), listeners[0].address.inet().unwrap().port());
    let policy = object("NetworkPolicy")["spec"]["ingress"].clone();
    for rule in policy.as_sequence().unwrap() {
        let opened = port(&rule["ports"][0]["port"]);
        assert_eq!(
            rule["from"].is_null(),
            opened == listeners[0].address.inet().unwrap().port(),
            "only clients come from anywhere"
        );
    }
}

#[test]
fn a_pod_has_time_to_end_and_no_rights_to_lose() {
    let (pod, container) = (pod(), container());
    let pause = container["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap();
    let whole = pod["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(whole > pause + GRACE_PERIOD.secs_ceil(), "{whole} seconds for {pause} and {GRACE_PERIOD}");
    assert!(
        object("Deployment")["spec"]["replicas"].as_u64()
            > object("PodDisruptionBudget")["spec"]["minAvailable"].as_u64()
    );
    let security = &container["securityContext"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(
        (&security["allowPrivilegeEscalation"], &security["readOnlyRootFilesystem"]),
        (&false.into(), &true.into())
    );
    assert_eq!(strings(&security["capabilities"]["drop"]), ["ALL"]);
    let dockerfile = fs::read_to_string("Dockerfile").unwrap();
    let user = pod["securityContext"]["runAsUser"].as_u64().unwrap();
    assert!(dockerfile.contains(&format!("\nUSER {user}\n")), "the image's user");
}

#[test]
fn the_config_map_passes_the_check() {
    let folder = Folder::new();
    let config = mounted(folder.path(), &object("ConfigMap")["data"]);
    let mut check = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = check.arg("check").arg(config).envs([redis_variable()]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    let warnings: Vec<&str> = said.lines().filter(|line| line.contains("warning:")).collect();
    // the operator fills in the customers
    let expected =
        ["admin.address: lets other machines in", "customers.directory.file: names a file without customers"];
    let is_expected = warnings.iter().zip(expected).all(|(warning, expected)| warning.contains(expected));
    assert!(warnings.len() == expected.len() && is_expected, "{warnings:?}");
}

#[test]
fn a_pod_is_ready_serves_and_follows_what_is_mounted() {
    let (origin, redis) = (Origin::start(), Redis::start_with_password("change-me"));
    let addresses = [free_port(), free_port()].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let [clients, admin] = addresses;
    // as in the cluster, but at the addresses of this test
    let here = |config: &str| {
        let config = config.replace("0.0.0.0:8080", &clients.to_string()).replace("0.0.0.0:9090", &admin.to_string());
        let mut files = Mapping::new();
        files.insert("tollgate.yaml".into(), config.replace("\"orders:8080\"", &origin.node()).into());
        Value::Mapping(files)
    };
    let folder = Folder::new();
    let path = mounted(folder.path(), &here(&config()));
    let environment = [(&*redis_variable().0, &*redis.url())];
    let _process = Process::tollgate(&["run", "--config", path.to_str().unwrap()], folder.path(), &environment);
    wait_until("the pod to be ready", || is_ready(admin));
    let container = container();
    for probe in ["readinessProbe", "livenessProbe"] {
        let path = container[probe]["httpGet"]["path"].as_str().unwrap().to_owned();
        assert_eq!(Client::connect(admin).round_trip("GET", &path, &[("connection", "close")]).status, 200, "{probe}");
    }
    let quota = |key: &str| {
        let answer = Client::connect(clients).round_trip("GET", "/", &[("x-api-key", key)]);
        answer.number("x-ratelimit-limit").filter(|_| answer.status == 200)
    };
    let anonymous = || Client::connect(clients).get("/").number("x-ratelimit-limit");
    assert_eq!(wait_for("an answer", anonymous), 5);
    assert_eq!(quota("change-me-free-key"), None, "nobody has a key yet");

    let changed = config().replace("anonymous: { rate: 1/s, burst: 5 }", "anonymous: { rate: 1/s, burst: 6 }");
    mount(path.parent().unwrap(), 2, &here(&changed));
    wait_until("the changed config map", || anonymous() == Some(6));
    let mut secrets = object("Secret")["stringData"].clone();
    secrets["customers.csv"] = "credential,customer,plan\nanother-key,acme,pro\n".into();
    mount(&path.parent().unwrap().with_file_name("secrets"), 2, &secrets);
    wait_until("the changed secret", || quota("another-key") == Some(200));
}

// === Helm ===

/// The output of deploy/chart.py for these arguments.
fn chart(args: &[&str], input: &str) -> Output {
    let mut program = Command::new("python3");
    program.arg("deploy/chart.py").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut program = program.spawn().unwrap();
    program.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    program.wait_with_output().unwrap()
}

/// The standard output of deploy/chart.py, which has to succeed.
#[track_caller]
fn charted(args: &[&str], input: &str) -> String {
    let output = chart(args, input);
    assert!(output.status.success(), "{}\n`make needs` fetches Helm", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_chart_is_good_and_renders_the_manifest() {
    assert_eq!(charted(&["lint"], ""), "");
    let manifest = fs::read_to_string(MANIFEST).unwrap();
    assert_eq!(charted(&["manifest"], ""), manifest, "python3 deploy/chart.py manifest >{MANIFEST}");
    let about: Value = serde_yaml::from_str(&fs::read_to_string("deploy/helm/Chart.yaml").unwrap()).unwrap();
    assert_eq!([&about["version"], &about["appVersion"]], [env!("CARGO_PKG_VERSION"); 2]);
}

#[test]
fn kubernetes_takes_what_the_chart_renders() {
    let values = json!({
        "replicas": 5,
        "image": { "repository": "registry.example/tollgate", "tag": "9.9.9" },
        "imagePullSecrets": [{ "name": "pull" }],
        "redis": { "url": "rediss://elsewhere:6380" },
        "secret": { "existing": "made-before" },
        "service": { "type": "LoadBalancer", "port": 8000 },
        "podDisruptionBudget": { "minAvailable": "50%" },
        "networkPolicy": { "enabled": false },
        "podMonitor": { "enabled": true },
        "nodeSelector": { "disk": "ssd" },
        "tolerations": [{ "key": "spot", "operator": "Exists" }],
    });
    let rendered = charted(&["render", &values.to_string()], "");
    for version in ["1.30", "1.37"] {
        assert_eq!(charted(&["check", version], &fs::read_to_string(MANIFEST).unwrap()), "", "{version}");
        // an object of an operator, which no schema of Kubernetes itself describes
        let refused = charted(&["check", version], &rendered);
        assert!(refused.lines().count() == 1 && refused.contains("schema for kind PodMonitor"), "{version}: {refused}");
    }
    let objects = objects(&rendered);
    let kinds: Vec<&str> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["ConfigMap", "Deployment", "PodDisruptionBudget", "PodMonitor", "Service"]);
    let deployment = only("Deployment", objects.clone());
    assert_eq!(deployment["spec"]["replicas"], 5);
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["containers"][0]["image"], "registry.example/tollgate:9.9.9");
    assert_eq!(pod["containers"][0]["env"][0]["value"], "rediss://elsewhere:6380");
    assert_eq!(pod["volumes"][1]["secret"]["secretName"], "made-before");
    assert_eq!((&pod["nodeSelector"]["disk"], &pod["tolerations"][0]["key"]), (&"ssd".into(), &"spot".into()));
    let monitor = only("PodMonitor", objects);
    assert_eq!(monitor["spec"]["selector"], deployment["spec"]["selector"]);
    let scraped = &monitor["spec"]["podMetricsEndpoints"][0];
    assert!(port(&scraped["port"]) > 0);
    // the alerts of another release are about other gateways
    let job: Value = serde_yaml::from_str("{ targetLabel: job, replacement: tollgate/default/tollgate }").unwrap();
    assert_eq!(scraped["relabelings"][0], job);
}

#[test]
fn names_that_look_like_numbers_and_flags_stay_names() {
    let digest = format!("sha256:{}", "0".repeat(64));
    let values = json!({
        "image": { "repository": "12", "digest": digest },
        "networkPolicy": { "scrapers": "123", "clients": "456" },
        "secret": { "existing": "123" },
    });
    for release in ["true", "123"] {
        let rendered = charted(&["render", &values.to_string(), release], "");
        assert_eq!(charted(&["check", "1.30"], &rendered), "", "{release}");
        let deployment = only("Deployment", objects(&rendered));
        assert_eq!(deployment["metadata"]["name"], release);
        let policy = only("NetworkPolicy", objects(&rendered));
        let clients = &policy["spec"]["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"];
        assert_eq!(clients["kubernetes.io/metadata.name"], "456");
        assert_eq!(deployment["spec"]["template"]["spec"]["containers"][0]["image"], format!("12@{digest}").as_str());
    }
    let tagged = charted(&["render", r#"{"image": {"repository": "12", "tag": "30"}}"#], "");
    assert_eq!(charted(&["check", "1.30"], &tagged), "");
}

#[test]
fn mistakes_in_values_and_manifests_are_found() {
    for (values, named) in [
        ("replica: 3", "'replica' not allowed"),
        ("redis: { url: http://redis }", "/redis/url"),
        ("image: { digest: latest }", "/image/digest"),
        ("podMonitor: { interval: '' }", "/podMonitor/interval"),
        ("podMonitor: { interval: '30' }", "/podMonitor/interval"),
        ("podMonitor: { job: gateways }", "/podMonitor/job"),
    ] {
        let values: Value = serde_yaml::from_str(values).unwrap();
        let output = chart(&["render", &serde_json::to_string(&values).unwrap()], "");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(named), "{said}");
    }
    let manifest = fs::read_to_string(MANIFEST).unwrap();
    let wrong = manifest.replace("replicas: 2", "replicas: two").replace("targetPort", "targetport");
    let refused = charted(&["check", "1.30"], &wrong);
    assert!(refused.contains("spec.replicas") && refused.contains("'targetport'"), "{refused}");
    assert_eq!(refused.lines().count(), 2, "{refused}");
}

// === systemd ===

/// The settings of a unit as section, name and value, in their order.
fn settings(file: &str) -> Vec<(String, String, String)> {
    let mut section = String::new();
    let mut settings = Vec::new();
    for line in fs::read_to_string(file).unwrap().lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        match line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
            Some(name) => section = name.to_owned(),
            None => {
                let (name, value) = line.split_once('=').unwrap_or_else(|| panic!("{file}: {line}"));
                settings.push((section.clone(), name.to_owned(), value.to_owned()));
            }
        }
    }
    settings
}

/// The value of this setting in the unit's `Service` section.
fn service(name: &str) -> String {
    let found = settings(UNIT).into_iter().find(|(section, key, _)| section == "Service" && key == name);
    found.unwrap_or_else(|| panic!("no {name}")).2
}

#[test]
fn the_unit_starts_what_the_program_takes_and_gives_it_time_to_end() {
    let start = service("ExecStart");
    let words: Vec<&str> = start.split(' ').collect();
    assert_eq!(words[0], "/usr/local/bin/tollgate");
    takes(&words[1..], "/etc/tollgate/tollgate.yaml");
    assert_eq!(service("ExecReload"), "/bin/kill -HUP $MAINPID");
    let stop: u64 = service("TimeoutStopSec").strip_suffix('s').unwrap().parse().unwrap();
    assert!(stop > GRACE_PERIOD.secs_ceil(), "{stop} seconds for {GRACE_PERIOD}");
    assert_eq!((service("Restart").as_str(), service("DynamicUser").as_str()), ("on-failure", "yes"));
    assert!(service("LimitNOFILE").parse::<u64>().unwrap() >= 1 << 20);
}

#[test]
fn systemd_understands_the_unit_and_finds_little_that_it_exposes() {
    let folder = Folder::new();
    let unit = fs::read_to_string(UNIT).unwrap().replace("/usr/local/bin/tollgate", env!("CARGO_BIN_EXE_tollgate"));
    let unit = folder.write("tollgate.service", &unit);
    let socket = folder.write("tollgate.socket", fs::read_to_string(SOCKET).unwrap());
    fs::create_dir(folder.path().join("tollgate.service.d")).unwrap();
    fs::copy(CREDENTIALS, folder.path().join("tollgate.service.d/credentials.conf")).unwrap();
    let analyze = |args: &[&str]| {
        let output = Command::new("systemd-analyze").args(args).arg(&unit).env("SYSTEMD_LOG_LEVEL", "warning").output();
        output.unwrap_or_else(|error| panic!("systemd-analyze: {error}; `make needs` installs it"))
    };
    let verified = analyze(&["verify", "--man=no", socket.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&verified.stderr).into_owned();
    let ours: Vec<&str> = said.lines().filter(|line| line.contains("tollgate")).collect();
    assert!(verified.status.success() && ours.is_empty(), "{said}");
    let exposed = analyze(&["security", "--offline=yes", "--threshold=20", "--no-pager"]);
    assert!(exposed.status.success(), "{}", String::from_utf8_lossy(&exposed.stdout));
}

#[test]
fn the_socket_is_the_one_of_the_page_and_its_address_can_be_one_of_a_configuration() {
    let sockets = settings(SOCKET);
    let page = fs::read_to_string("docs/state.md").unwrap();
    for (_, name, value) in sockets.iter().filter(|(section, ..)| section != "Unit") {
        assert!(page.contains(&format!("\n{name}={value}\n")), "{name}={value}");
    }
    let listen = sockets.iter().find(|(_, name, _)| name == "ListenStream").unwrap();
    assert!(listen.2.parse::<SocketAddr>().is_ok(), "{} is not written out", listen.2);
}

#[test]
fn the_credentials_are_those_that_its_words_name() {
    let text = fs::read_to_string(CREDENTIALS).unwrap();
    let values: Vec<String> = settings(CREDENTIALS).into_iter().map(|(_, _, value)| value).collect();
    let loaded: Vec<(&str, &str)> = values.iter().map(|value| value.split_once(':').unwrap()).collect();
    let config: String =
        text.lines().filter_map(|line| line.strip_prefix("#   ")).map(|line| format!("{line}\n")).collect();
    let folder = Folder::new();
    for (name, file) in loaded {
        let from = file.strip_suffix(&format!("/{name}")).unwrap();
        assert!(text.contains(&format!("`CREDENTIALS_DIRECTORY={from} tollgate check")), "{from}");
        folder.write(name, "a secret of more than 16 bytes\n");
        assert!(config.contains(&format!("${{CREDENTIALS_DIRECTORY}}/{name}\n")), "{name} in {config}");
    }
    let rest = "listeners: [{ address: \"127.0.0.1:8080\" }]\nupstreams: { u: { nodes: [\"127.0.0.1:9000\"] } }
routes: [{ name: all, upstream: u, limits: [l] }]
limits: { l: { algorithm: gcra, rate: 1/s, burst: 1, key: all, mode: shared } }\n";
    let config = folder.write("tollgate.yaml", format!("{config}{rest}"));
    let mut check = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    let output = check.arg("check").arg(config).env("CREDENTIALS_DIRECTORY", folder.path()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
