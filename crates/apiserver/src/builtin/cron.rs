//! Whether a CronJob's schedule is one: five fields or a descriptor, with the complaints of the parser Go uses.

/// Checks a standard cron line.
pub(super) fn check(schedule: &str) -> Result<(), String> {
    if let Some(descriptor) = schedule.strip_prefix('@') {
        return match descriptor {
            "yearly" | "annually" | "monthly" | "weekly" | "daily" | "midnight" | "hourly" => Ok(()),
            _ if descriptor.starts_with("every ") => Ok(()),
            _ => Err(format!("unrecognized descriptor: {schedule}")),
        };
    }
    let fields: Vec<&str> = schedule.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields[..] else {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    };
    const MONTHS: &[&str] =
        &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    field(minute, 0, 59, &[])?;
    field(hour, 0, 23, &[])?;
    field(day, 1, 31, &[])?;
    field(month, 1, 12, MONTHS)?;
    field(weekday, 0, 6, DAYS)
}

fn field(text: &str, min: u64, max: u64, names: &[&str]) -> Result<(), String> {
    text.split(',').try_for_each(|part| range(part, min, max, names))
}

fn range(part: &str, min: u64, max: u64, names: &[&str]) -> Result<(), String> {
    let mut range_and_step = part.split('/');
    let range = range_and_step.next().unwrap_or_default();
    let step = range_and_step.next();
    if range_and_step.next().is_some() {
        return Err(format!("too many slashes: {part}"));
    }
    let mut ends = range.split('-');
    let first = ends.next().unwrap_or_default();
    let (start, end) = if matches!(first, "*" | "?") {
        (min, max)
    } else {
        let start = number(first, min, names)?;
        let end = match (ends.next(), step) {
            (Some(last), _) => number(last, min, names)?,
            (None, Some(_)) => max,
            (None, None) => start,
        };
        if ends.next().is_some() {
            return Err(format!("too many hyphens: {part}"));
        }
        (start, end)
    };
    if step.map(|step| number(step, 0, &[])).transpose()? == Some(0) {
        return Err(format!("step of range should be a positive number: {part}"));
    }
    if start < min {
        return Err(format!("beginning of range ({start}) below minimum ({min}): {part}"));
    }
    if end > max {
        return Err(format!("end of range ({end}) above maximum ({max}): {part}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {part}"));
    }
    Ok(())
}

fn number(text: &str, first: u64, names: &[&str]) -> Result<u64, String> {
    if let Some(position) = names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
        return Ok(first + position as u64);
    }
    match text.parse::<i64>() {
        Ok(number) => {
            u64::try_from(number).map_err(|_| format!("negative number ({number}) not allowed: {text}"))
        }
        Err(_) => {
            Err(format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"))
        }
    }
}
