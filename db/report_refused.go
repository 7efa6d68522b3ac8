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

// report applies a call's reports: all in one transaction, and where the
// database refuses that, one by one, so that what it objects to keeps nobody
// else's exit from being stored. A call of which nothing was stored has not renewed
// the lease, and its answer is not known to be complete.
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

// isUnfit reports whether the database, or we, object to what was sent, so that
// the very same would be refused again.
func isUnfit(err error) bool {
	if e, ok := errors.AsType[*berth.Error](err); ok {
		return e.Code == berth.CodeInvalid
	}
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pg.Code[:2] == "22" || pg.Code[:2] == "23" || pg.Code[:2] == "BT")
}

// parts are the call's single reports, each a call of its own.
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

func concerned(part wire.SyncRequest) berth.AllocationID {
	switch {
	case len(part.Reports) > 0:
		return part.Reports[0].Alloc
	case len(part.Gone) > 0:
		return part.Gone[0]
	}
	return 0
}

// checkReport finds what no row could take.
func checkReport(p wire.RankReport) error {
	if _, known := phaseOrder[p.Phase]; !known {
		return berth.Errorf(berth.CodeInvalid, "allocation %d: unknown phase %q", p.Alloc, p.Phase)
	}
	if _, err := berth.ParseJobID(string(p.Job)); err != nil {
		return fmt.Errorf("allocation %d: %w", p.Alloc, err)
	}
	return nil
}

// cleaned makes the words of engines and jobs fit for text and jsonb, which
// hold neither NUL nor broken UTF-8: an exit must not go unheard for its
// message.
func cleaned(reports []wire.RankReport) []wire.RankReport {
	list := make([]wire.RankReport, len(reports))
	for i, p := range reports {
		p.Warning, p.ImageDigest = plainText(p.Warning), plainText(p.ImageDigest)
		if p.Exit != nil {
			x := *p.Exit
			x.Message, x.Unstored, x.Refused = plainText(x.Message), plainTexts(x.Unstored), plainTexts(x.Refused)
			x.OverQuota = plainText(x.OverQuota)
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

func plainText(s string) string {
	return strings.ToValidUTF8(strings.ReplaceAll(s, "\x00", ""), "\uFFFD")
}
