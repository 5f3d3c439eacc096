//! Quantities on their way through the server: canonical in what is stored, rounded up where the kind says so.

use karpenter_primitives::Quantity;

/// What Go says about something that cannot be a quantity at all.
pub(super) const FORMAT_ERROR: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// The canonical form, or nothing when `text` is canonical already.
pub(super) fn canonical(text: &str) -> Result<Option<String>, String> {
    // One to three digits without a leading zero, with or without a plain suffix: cannot be shortened.
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    if (1..=3).contains(&digits)
        && !text.starts_with('0')
        && matches!(&text[digits..], "" | "m" | "k" | "M" | "G" | "T" | "Mi" | "Gi" | "Ti")
    {
        return Ok(None);
    }
    let quantity = Quantity::parse(text.trim()).map_err(|error| error.to_string())?;
    let format = quantity.format();
    let printed = quantity.with_format(format).to_string();
    Ok(if printed == text { None } else { Some(printed) })
}

/// The text of a quantity finer than a thousandth, rounded up to thousandths; nothing for all others.
pub(super) fn rounded_to_milli(text: &str) -> Option<String> {
    if !text.ends_with(['n', 'u']) && !text.contains('e') {
        return None;
    }
    let quantity = Quantity::parse(text).ok()?;
    let rounded = Quantity::from_milli(quantity.milli_value(), quantity.format());
    (rounded != quantity).then(|| rounded.to_string())
}

/// A stored quantity. What is stored was decoded, so it parses; nothing stands for nothing.
pub(super) fn parse(text: Option<&str>) -> Option<Quantity> {
    text.and_then(|text| Quantity::parse(text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_printed_in_their_shortest_exact_form() {
        for (given, expected) in [
            ("1000m", "1"),
            ("1000", "1k"),
            ("1024Mi", "1Gi"),
            ("0.5", "500m"),
            ("1.5Gi", "1536Mi"),
            ("1e3", "1e3"),
            ("0m", "0"),
            ("1Ki", "1Ki"),
            ("0.5Ki", "512"),
            ("999Mi", "999Mi"),
        ] {
            assert_eq!(canonical(given).unwrap().as_deref().unwrap_or(given), expected, "{given}");
        }
    }

    #[test]
    fn a_text_that_is_no_quantity_is_refused_in_go_s_words() {
        assert_eq!(canonical("abc").unwrap_err(), FORMAT_ERROR);
        assert_eq!(canonical("").unwrap_err(), FORMAT_ERROR);
        assert_eq!(canonical("1Kim").unwrap_err(), "unable to parse quantity's suffix");
    }

    #[test]
    fn what_is_finer_than_a_thousandth_is_rounded_up() {
        assert_eq!(rounded_to_milli("100u").as_deref(), Some("1m"));
        assert_eq!(rounded_to_milli("5m"), None);
        assert_eq!(rounded_to_milli("1e3"), None);
    }
}
