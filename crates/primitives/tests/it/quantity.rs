//! Quantities against the recorded spellings, roundings and sums.

use karpenter_primitives::{Format, Quantity};

use crate::{rows, text};

#[test]
fn every_recorded_spelling_parses_prints_and_rounds_as_in_go() {
    let mut wrong = Vec::new();
    for row in rows(include_str!("../../../../conformance/api/quantities.json")) {
        let input = text(&row, "in");
        let (got, want) = match Quantity::parse(input) {
            Err(error) => (error.to_string(), text(&row, "error").to_owned()),
            Ok(quantity) => {
                let format = match quantity.format() {
                    Format::DecimalSi => "DecimalSI",
                    Format::BinarySi => "BinarySI",
                    Format::DecimalExponent => "DecimalExponent",
                };
                let canonical = quantity.negated().negated().to_string();
                let mut got = format!("{quantity} {canonical} {format}");
                let mut want =
                    format!("{} {} {}", text(&row, "out"), text(&row, "canonical"), text(&row, "format"));
                if row["plain"].is_string() {
                    let (value, milli) = (quantity.value(), quantity.milli_value());
                    got += &format!(" {value} {milli} {}", quantity.to_plain_decimal());
                    // Past 38 digits the places after the point are not held.
                    let plain = text(&row, "plain");
                    let plain = if plain.len() > 39 { plain.trim_end_matches(".000000000") } else { plain };
                    want += &format!(" {} {} {plain}", row["value"], row["milli"]);
                }
                (got, want)
            }
        };
        if got != want {
            wrong.push(format!("{input:?}: got {got}, Go says {want}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn sums_differences_products_and_order_are_those_of_go() {
    let mut wrong = Vec::new();
    for row in rows(include_str!("../../../../conformance/api/arithmetic.json")) {
        let a = Quantity::parse(text(&row, "a")).unwrap();
        let b = Quantity::parse(text(&row, "b")).unwrap();
        let (mut sum, mut difference) = (a.clone(), a.clone());
        sum += &b;
        difference -= &b;
        let got = format!("{sum} {difference} {} {}", a.cmp(&b) as i32, a.times(3));
        let want = format!(
            "{} {} {} {}",
            text(&row, "sum"),
            text(&row, "difference"),
            row["cmp"],
            text(&row, "threeTimesA")
        );
        if got != want {
            wrong.push(format!("{a} and {b}: got {got}, Go says {want}"));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn json_may_hold_a_string_a_number_or_null() {
    let read = |json: &str| serde_json::from_str::<Quantity>(json).map(|q| q.to_string());
    assert_eq!(read("\" 1500m \"").unwrap(), "1500m");
    assert_eq!(read("4").unwrap(), "4");
    assert_eq!(read("-3").unwrap(), "-3");
    assert_eq!(read("0.5").unwrap(), "500m");
    assert_eq!(read("null").unwrap(), "0");
    let error = read("\"four\"").unwrap_err().to_string();
    assert!(error.contains("quantities must match the regular expression"), "{error}");
    assert!(read("{}").is_err());
    assert_eq!(serde_json::to_string(&Quantity::parse("1024Mi").unwrap()).unwrap(), "\"1Gi\"");
}
