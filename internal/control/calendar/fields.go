package calendar

import "time"

// Field is the set of values of a field of a date, in order.
type Field []int

// Fields is a calendar as sets of numbers: a time that has one of each set, in
// the zone, is a time of the calendar. Years empty is every year.
type Fields struct {
	Seconds, Minutes, Hours, Days, Months, Weekdays, Years Field
}

// star marks a field of the cron library that was written as a star.
const star = uint64(1) << 63

// Fields returns the calendars that together make up this one, and their zone. An interval
// has no fields; see Every.
func (c Calendar) Fields() (of []Fields, zone string) {
	switch {
	case c.cron != nil:
		f := Fields{
			Seconds: Field{0}, Minutes: bits(c.cron.Minute, 0, 59), Hours: bits(c.cron.Hour, 0, 23),
			Days: bits(c.cron.Dom, 1, 31), Months: bits(c.cron.Month, 1, 12), Weekdays: bits(c.cron.Dow, 0, 6),
		}
		zone = c.cron.Location.String()
		if (c.cron.Dom|c.cron.Dow)&star != 0 {
			return []Fields{f}, zone
		}
		// Both are given: either will do.
		byDay, byWeekday := f, f
		byDay.Weekdays, byWeekday.Days = bits(^uint64(0), 0, 6), bits(^uint64(0), 1, 31)
		return []Fields{byDay, byWeekday}, zone
	case !c.at.IsZero():
		return []Fields{{
			Seconds: Field{c.at.Second()}, Minutes: Field{c.at.Minute()}, Hours: Field{c.at.Hour()},
			Days: Field{c.at.Day()}, Months: Field{int(c.at.Month())}, Weekdays: bits(^uint64(0), 0, 6),
			Years: Field{c.at.Year()},
		}}, "UTC"
	default:
		return nil, "UTC"
	}
}

// Every is the interval of a calendar that has one; else 0.
func (c Calendar) Every() time.Duration { return c.every }

// bits returns the set bits from first to last, which is the form of a parsed cron field.
func bits(set uint64, first, last int) Field {
	var f Field
	for i := first; i <= last; i++ {
		if set&(1<<i) != 0 {
			f = append(f, i)
		}
	}
	return f
}
