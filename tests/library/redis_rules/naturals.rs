//! The script's whole numbers compared with Rust's.

use crate::algorithms::random::Random;
use crate::redis_link::server::Server;

const NATURALS: &str = include_str!("../../../src/store/redis/lua/naturals.lua");

/// A script that takes pairs of numbers, and returns the results of all operations on each.
const EVERYTHING: &str = "
local results = {}
for i = 1, #ARGV, 2 do
    local a, b = natural(ARGV[i]), natural(ARGV[i + 1])
    local quotient, rest = '-', '-'
    if b ~= 0 then
        quotient, rest = divide(a, b)
        quotient, rest = digits(quotient), digits(rest)
    end
    results[#results + 1] = table.concat({
        digits(a), digits(add(a, b)), digits(minus(a, b)), digits(times(a, b)), quotient, rest,
        tostring(less(a, b)), tostring(equal(a, b)), digits(word(a)), format('%.0f', double(a)),
        digits(whole(double(a))), digits(greatest_common_divisor(a, b)),
    }, ' ')
end
return results";

fn some(random: &mut Random) -> u128 {
    let any = u128::from(random.any()) << 64 | u128::from(random.any());
    let near =
        random.one_of(&[9_000_000_000_000_000_u128, 1 << 53, 1 << 64, 10_000_000, 100_000_000_000_000, 1 << 100]);
    match random.from(0, 4) {
        0 => near.saturating_add(random.from(0, 2).into()).saturating_sub(1),
        1 => u128::from(random.from(0, 3)),
        _ => any >> random.from(1, 127),
    }
}

fn expected(a: u128, b: u128) -> String {
    let product = a.checked_mul(b).map_or("?".to_owned(), |product| product.to_string());
    let (quotient, rest) = match b {
        0 => ("-".to_owned(), "-".to_owned()),
        b => ((a / b).to_string(), (a % b).to_string()),
    };
    let double = a as f64;
    let divisor = tollgate::units::greatest_common_divisor(a, b);
    format!(
        "{a} {} {} {product} {quotient} {rest} {} {} {} {double:.0} {double:.0} {divisor}",
        a + b,
        a.saturating_sub(b),
        a < b,
        a == b,
        a.min(u64::MAX.into()),
    )
}

#[test]
fn whole_numbers_are_exact() {
    let server = Server::start();
    let mut connection = server.connect();
    let mut random = Random::new(5);
    for _ in 0..20 {
        let pairs: Vec<(u128, u128)> = (0..200).map(|_| (some(&mut random), some(&mut random))).collect();
        let mut eval = redis::cmd("EVAL");
        eval.arg(format!("{NATURALS}{EVERYTHING}")).arg(0);
        for (a, b) in &pairs {
            eval.arg(a.to_string()).arg(b.to_string());
        }
        let results: Vec<String> = eval.query(&mut connection).unwrap();
        for ((a, b), found) in pairs.iter().zip(results) {
            let expected = expected(*a, *b);
            let mut words: Vec<&str> = found.split(' ').collect();
            if expected.contains('?') {
                words[3] = "?";
            }
            assert_eq!(words.join(" "), expected, "of {a} and {b}");
        }
    }
}
