package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/spec"
	"berth/wire"
)

// writeOffers prints the places where a job could run, and below them the dates of the prices. Without an offer of a
// cloud it prints only the reason.
func writeOffers(a *app, list []wire.PlanOffer, note string) error {
	// The first entry stands for the machines that exist; the offers of clouds follow it.
	if len(list) < 2 {
		if note == "" {
			return nil
		}
		_, err := fmt.Fprintf(a.out, "\nno machine of a cloud: %s\n", oneLine(note))
		return err
	}
	t := table{screen: a.outTerm, head: []string{"OFFER", "REGION", "MACHINE", "CPUS", "MEMORY", "GPUS", "MARKET",
		"$/H", "$JOB", "STARTS", "NOTE"}}
	for _, o := range list {
		t.add(offerCells(a, o)...)
	}
	fmt.Fprintln(a.out)
	if err := t.write(a.out); err != nil {
		return err
	}
	for _, line := range priceDates(list) {
		fmt.Fprintln(a.out, oneLine(line))
	}
	if note != "" {
		fmt.Fprintln(a.out, oneLine(note))
	}
	return nil
}

// offerCells returns the row of an offer.
func offerCells(a *app, o wire.PlanOffer) []any {
	region, machine, gpus := o.Region, o.Machine, ""
	if o.Zone != "" {
		region += "/" + o.Zone
	}
	if o.Machines > 1 {
		machine = fmt.Sprintf("%d x %s", o.Machines, machine)
	}
	if o.GPUs > 0 {
		gpus = strings.TrimSpace(fmt.Sprintf("%d %s", o.GPUs, o.GPUType))
	}
	// Zero stands for an unknown price, cost or size.
	number := func(format string, x float64) string {
		if x == 0 {
			return "-"
		}
		return fmt.Sprintf(format, x)
	}
	memory, starts, note := "-", "-", o.Note
	if o.MemoryMiB > 0 {
		memory = spec.MiB(o.MemoryMiB).String()
	}
	if o.Starts != nil {
		starts = ago(*o.Starts, a.now())
		// The clocks of server and client differ, so a start within a second counts as now.
		if !o.Starts.After(a.now().Add(time.Second)) {
			starts = "now"
		}
	}
	if o.Until != nil {
		note += "; next try after " + clock(*o.Until, a.now())
	}
	return []any{o.Provider, orDash(oneLine(region)), orDash(oneLine(machine)), number("%g", o.CPUs), memory,
		orDash(oneLine(gpus)), orDash(o.Market), number("%.2f", o.Price), number("%.2f", o.JobCost), starts,
		orDash(oneLine(note))}
}

// priceDates returns a line for each source and date of the prices.
func priceDates(list []wire.PlanOffer) (lines []string) {
	for _, o := range list {
		if o.AsOf == nil || o.Price == 0 {
			continue
		}
		line := "prices of " + o.Provider + " as of " + o.AsOf.UTC().Format(time.DateOnly)
		if o.Source != "" {
			line += ", " + o.Source
		}
		lines = append(lines, line)
	}
	// Offers of one provider mostly share a source and a date: sorted, equal lines are adjacent.
	slices.Sort(lines)
	return slices.Compact(lines)
}
