package sbatch

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"berth/spec"
)

// number parses a whole number from 1 to a million.
func number(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 1_000_000 {
		return 0, errors.New("is not a number; allowed are 1 to 1000000")
	}
	return n, nil
}

// timeLimit parses a time limit of Slurm. Slurm counts whole minutes, so seconds are rounded
// up. 0 means no limit.
func timeLimit(text string) (spec.Duration, error) {
	switch strings.ToUpper(text) {
	case "0", "INFINITE", "UNLIMITED":
		return 0, nil
	}
	days, clock, hasDays := strings.Cut(text, "-")
	if !hasDays {
		days, clock = "0", text
	}
	fields := strings.Split(clock, ":")
	// Without days the last of up to two fields counts minutes or seconds, and with days the
	// first field counts hours.
	units := map[int][]time.Duration{1: {time.Minute}, 2: {time.Minute, time.Second},
		3: {time.Hour, time.Minute, time.Second}}[len(fields)]
	if hasDays && len(fields) <= 3 {
		units = []time.Duration{time.Hour, time.Minute, time.Second}[:len(fields)]
	}
	sum, ok := count(days, 24*time.Hour)
	for i, unit := range units {
		d, valid := count(fields[i], unit)
		sum, ok = sum+d, ok && valid
	}
	if !ok || len(units) == 0 {
		return 0, errors.New("is not a time; allowed are MINUTES, MINUTES:SECONDS, HOURS:MINUTES:SECONDS, " +
			"DAYS-HOURS, DAYS-HOURS:MINUTES, DAYS-HOURS:MINUTES:SECONDS and UNLIMITED")
	}
	return spec.Duration((sum + time.Minute - 1).Truncate(time.Minute)), nil
}

// count returns a number of units. Numbers have at most five digits, so that a sum of four
// counts fits.
func count(digits string, unit time.Duration) (time.Duration, bool) {
	n, err := strconv.ParseUint(digits, 10, 64)
	if err != nil || len(digits) > 5 || digits[0] == '+' {
		return 0, false
	}
	return time.Duration(n) * unit, true
}

// memory parses an amount of memory of Slurm, which counts in MiB where no unit is given.
// Smaller parts are rounded up.
func memory(text string) (spec.MiB, error) {
	digits := strings.TrimRight(strings.ToUpper(text), "B")
	kib := int64(1 << 10)
	if digits != "" {
		if unit, ok := map[byte]int64{'K': 1, 'M': 1 << 10, 'G': 1 << 20, 'T': 1 << 30}[digits[len(digits)-1]]; ok {
			kib, digits = unit, digits[:len(digits)-1]
		}
	}
	n, err := strconv.ParseUint(digits, 10, 30)
	if err != nil {
		return 0, errors.New("is not an amount; allowed are a number of MiB, or a number with K, M, G or T, such as " +
			"16G")
	}
	if n > uint64(1<<40)/uint64(kib) {
		return 0, errors.New("is more than 1024T")
	}
	return spec.MiB((int64(n)*kib + 1023) >> 10), nil
}

// gpus parses [TYPE:]COUNT, as --gpus and its relatives take it.
func gpus(text string) (model string, n int, err error) {
	model, digits, typed := strings.Cut(text, ":")
	if !typed {
		model, digits = "", text
	}
	n, err = strconv.Atoi(digits)
	if err != nil || n < 0 || n > 1_000_000 || typed && model == "" {
		return "", 0, errors.New("is not a number of GPUs; allowed is [TYPE:]COUNT, such as 4 or a100:4")
	}
	return model, n, nil
}

// gres parses a list of generic resources of which all are GPUs: gpu[:TYPE][:COUNT].
func gres(text string) (model string, n int, err error) {
	if text == "none" || text == "NONE" {
		return "", 0, nil
	}
	parts := strings.Split(strings.TrimPrefix(text, "gres/"), ":")
	if strings.Contains(text, ",") || parts[0] != "gpu" || len(parts) > 3 {
		return "", 0, errNoGPUs
	}
	n = 1
	if last := parts[len(parts)-1]; len(parts) > 1 {
		if v, err := strconv.Atoi(last); err == nil {
			n, parts = v, parts[:len(parts)-1]
		} else if len(parts) == 3 {
			return "", 0, fmt.Errorf("%q is not a number of GPUs; allowed is gpu[:TYPE][:COUNT]", last)
		}
	}
	if len(parts) == 3 || n < 0 || n > 1_000_000 {
		return "", 0, errors.New("is not a number of GPUs; allowed is gpu[:TYPE][:COUNT]")
	}
	if len(parts) == 2 {
		model = parts[1]
	}
	return model, n, nil
}

// errNoGPUs is the error of a list of generic resources that Berth does not count.
var errNoGPUs = errors.New("only GPUs of one type are counted: gpu[:TYPE][:COUNT]; use --set " +
	"placement.labels.NAME=VALUE for machines with other equipment")

// begin parses the start of a job: now, now+COUNT[UNIT], and dates with or without a time, in
// the zone of now.
func begin(text string, now time.Time) (time.Time, error) {
	if rest, ok := strings.CutPrefix(text, "now"); ok {
		if rest == "" {
			return now, nil
		}
		digits := strings.TrimLeft(rest, "+")
		unit := strings.TrimLeft(digits, "0123456789")
		units := map[string]time.Duration{"": time.Second, "second": time.Second, "minute": time.Minute,
			"hour": time.Hour, "day": 24 * time.Hour, "week": 7 * 24 * time.Hour}
		d, ok := count(strings.TrimSuffix(digits, unit), units[strings.TrimSuffix(unit, "s")])
		if _, known := units[strings.TrimSuffix(unit, "s")]; ok && known && rest[0] == '+' {
			return now.Add(d), nil
		}
	}
	for _, layout := range []string{"2006-01-02T15:04:05", "2006-01-02T15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, errors.New("is not a time that Berth reads; allowed are YYYY-MM-DD, YYYY-MM-DDTHH:MM[:SS] " +
		"and now+COUNT with seconds, minutes, hours, days or weeks")
}
