package db

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"berth"
	"berth/wire"
)

// report applies the reports of a call in one transaction. If the database rejects the
// transaction because of its data, report applies each report in its own transaction, so
// that one bad report does not keep the exits of other members from being stored. If no
// part was stored, the lease is not renewed and the answer is marked as incomplete.
func (d *Agents) report(ctx context.Context, machine berth.MachineID, req wire.SyncRequest) (heard, error) {
	req.Reports = cleaned(req.Reports)
	all, err := d.reportOnce(ctx, machine, req, false)
	if !isUnfit(err) {
		return all, err
	}
	d.log.Error("machine reports refused, storing them one by one", "machine_id", machine,
		"reports", len(req.Reports), "err", err)
	all = heard{known: true}
	stored := false
	for _, part := range parts(req) {
		one, err := d.reportOnce(ctx, machine, part, true)
		switch {
		case err == nil:
			stored = true
			all.add(one)
		case isUnfit(err):
			all.refused = append(all.refused, wire.Refused{Alloc: concerned(part),
				Detail: mapError(err, "report").Error()})
		default:
			return all, err
		}
	}
	all.known = all.known && stored
	return all, nil
}

// isUnfit reports whether the data was rejected, by a check or by the database, so that the
// same data would be rejected again.
func isUnfit(err error) bool {
	if e, ok := errors.AsType[*berth.Error](err); ok {
		return e.Code == berth.CodeInvalid
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	// SQLSTATE classes: 22 data exception, 23 integrity violation, BT Berth's own triggers.
	return ok && (pg.Code[:2] == "22" || pg.Code[:2] == "23" || pg.Code[:2] == "BT")
}

// parts splits a call into calls with one report each. All of them keep the call's seq.
func parts(req wire.SyncRequest) []wire.SyncRequest {
	one := req
	one.Reports, one.Gone, one.GPUs, one.Cache = nil, nil, nil, nil
	var list []wire.SyncRequest
	for i := range req.Reports {
		one.Reports = req.Reports[i : i+1]
		list = append(list, one)
	}
	one.Reports = nil
	for i := range req.Gone {
		one.Gone = req.Gone[i : i+1]
		list = append(list, one)
	}
	one.Gone = nil
	for i := range req.GPUs {
		one.GPUs = req.GPUs[i : i+1]
		list = append(list, one)
	}
	if one.GPUs = nil; req.Cache != nil {
		one.Cache = req.Cache
		list = append(list, one)
	}
	return list
}

// concerned returns the allocation that a part is about, or 0 if the part is about devices
// or the cache.
func concerned(part wire.SyncRequest) berth.AllocationID {
	switch {
	case len(part.Reports) > 0:
		return part.Reports[0].Alloc
	case len(part.Gone) > 0:
		return part.Gone[0]
	}
	return 0
}

// checkReport returns an error for a report that the statements cannot process.
func checkReport(p wire.RankReport) error {
	if _, known := phaseOrder[p.Phase]; !known {
		return berth.Errorf(berth.CodeInvalid, "allocation %d: unknown phase %q", p.Alloc, p.Phase)
	}
	if _, err := berth.ParseJobID(string(p.Job)); err != nil {
		return fmt.Errorf("allocation %d: %w", p.Alloc, err)
	}
	return nil
}

// cleaned removes NUL bytes and replaces invalid UTF-8 in all texts of engines and jobs,
// since text and jsonb columns reject both: an exit must not be lost because of its
// message. It returns copies and leaves the argument unchanged.
func cleaned(reports []wire.RankReport) []wire.RankReport {
	list := make([]wire.RankReport, len(reports))
	for i, p := range reports {
		p.Warning, p.ImageDigest = plainText(p.Warning), plainText(p.ImageDigest)
		if p.Exit != nil {
			// The caller's reports share these values with the request.
			x := *p.Exit
			x.Message, x.Unstored, x.Refused = plainText(x.Message), plainTexts(x.Unstored), plainTexts(x.Refused)
			x.OverQuota, x.CheckFailed = plainText(x.OverQuota), plainText(x.CheckFailed)
			p.Exit = &x
		}
		if p.Progress != nil {
			x := *p.Progress
			x.Message = plainText(x.Message)
			p.Progress = &x
		}
		list[i] = p
	}
	return list
}

func plainTexts(list []string) []string {
	list = slices.Clone(list)
	for i, s := range list {
		list[i] = plainText(s)
	}
	return list
}

// plainText returns s without NUL bytes and with valid UTF-8.
func plainText(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD")
}
