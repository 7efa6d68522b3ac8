// Package offers reads the machine types that clouds offer, with dated prices, from a CSV file.
//
// Berth ships no prices: they change, and contracts differ. The file has the columns of Header, and
// each line names the source of its price and the date on which the price was valid.
//
// The one rule to know: a file with one bad line is refused as a whole, with all its bad lines.
package offers

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth/internal/control/cloud"
)

// Header is the first line of a file.
const Header = "provider,region,zone,type,market,cpus,memory_mib,gpus,gpu_type,price_per_hour,source,as_of"

// Limits of a file.
const (
	maxBytes  = 32 << 20
	maxFaults = 20 // bad lines that an error lists
)

// Load reads a file.
func Load(path, provider string) ([]cloud.Offer, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read offers: %w", err)
	}
	defer file.Close()
	all, err := Read(file, provider)
	if err != nil {
		return nil, fmt.Errorf("read offers of %s: %w", path, err)
	}
	return all, nil
}

// Read returns the offers of a provider. Lines of other providers are validated and left out. The
// error lists the bad lines.
func Read(from io.Reader, provider string) ([]cloud.Offer, error) {
	limited := &io.LimitedReader{R: from, N: maxBytes + 1}
	lines := csv.NewReader(limited)
	lines.FieldsPerRecord = len(strings.Split(Header, ","))
	lines.Comment = '#'
	header, err := lines.Read()
	switch {
	case errors.Is(err, io.EOF):
		return nil, fmt.Errorf("the file is empty: its first line must be %s", Header)
	case err != nil && !errors.Is(err, csv.ErrFieldCount):
		return nil, err
	case strings.Join(header, ",") != Header:
		return nil, fmt.Errorf("the first line is %q, it must be %s", strings.Join(header, ","), Header)
	}
	var all []cloud.Offer
	var faults []error
	seen := map[string]int{} // line of each offering of each provider
	for len(faults) < maxFaults {
		record, err := lines.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			faults = append(faults, err) // names the line
			if !errors.Is(err, csv.ErrFieldCount) {
				break
			}
			continue
		}
		line, _ := lines.FieldPos(0)
		offer, of, err := parse(record)
		if key := of + " " + offer.Offering.String(); err == nil && seen[key] != 0 {
			err = fmt.Errorf("%s of provider %s is in line %d already", offer.Offering, of, seen[key])
		} else {
			seen[key] = line
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("line %d: %w", line, err))
		} else if of == provider {
			all = append(all, offer)
		}
	}
	if limited.N == 0 {
		return nil, fmt.Errorf("the file is longer than %d MiB", maxBytes>>20)
	}
	return all, errors.Join(faults...)
}

// In returns the offers of the regions, all if regions is nil.
func In(all []cloud.Offer, regions []string) []cloud.Offer {
	var some []cloud.Offer
	for _, o := range all {
		if regions == nil || slices.Contains(regions, o.Region) {
			some = append(some, o)
		}
	}
	return some
}

// parse reads one line. The error has every fault of the line.
func parse(fields []string) (o cloud.Offer, provider string, err error) {
	var faults []error
	column := func(name string) string {
		return strings.TrimSpace(fields[slices.Index(strings.Split(Header, ","), name)])
	}
	fault := func(name, allowed string) {
		faults = append(faults, fmt.Errorf("%s %q: allowed is %s", name, column(name), allowed))
	}
	whole := func(name string, least int64) int64 {
		n, err := strconv.ParseInt(column(name), 10, 64)
		if err != nil || n < least || n > math.MaxInt32 {
			fault(name, fmt.Sprintf("a number from %d on", least))
		}
		return n
	}
	provider = column("provider")
	o.Region, o.Zone, o.Type = column("region"), column("zone"), column("type")
	o.Market, o.Source, o.GPUType = cloud.Market(column("market")), column("source"), column("gpu_type")
	for _, name := range []string{"provider", "region", "type", "source"} {
		if column(name) == "" {
			fault(name, "a text that is not empty")
		}
	}
	if o.Market != cloud.OnDemand && o.Market != cloud.Spot {
		fault("market", "on_demand or spot")
	}
	o.CPUs, o.MemoryMiB, o.GPUs = int(whole("cpus", 1)), whole("memory_mib", 1), int(whole("gpus", 0))
	if (o.GPUs > 0) != (o.GPUType != "") {
		fault("gpu_type", "a type for one GPU or more, and nothing for none")
	}
	if text := column("price_per_hour"); text != "" { // empty: unknown
		if o.Price, err = strconv.ParseFloat(text, 64); err != nil || !(o.Price > 0) || math.IsInf(o.Price, 0) {
			fault("price_per_hour", "US dollars above 0, or nothing if the price is unknown")
		}
	}
	if o.AsOf, err = time.Parse(time.DateOnly, column("as_of")); err != nil {
		fault("as_of", "a date such as 2026-11-26")
	}
	return o, provider, errors.Join(faults...)
}
