package db

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/spec"
	"berth/wire"
)

// floorBatch bounds the machines that one pass of JudgeHosts judges.
const floorBatch = 100

// HostVerdict is a changed verdict about a machine.
type HostVerdict struct {
	Machine berth.MachineID
	Text    string
	Met     bool // the machine meets the security floors
}

// judgedHost is a machine to judge, under lock.
type judgedHost struct {
	id      berth.MachineID
	facts   wire.HostFacts
	waivers []wire.HostWaiver
	before  []wire.HostFinding // the last verdict; nil: none
	expired bool               // the report is too old
}

// dueHosts is true for a machine m with facts h whose verdict is missing, of other floors, of a waiver that has ended,
// or of a report that has become too old.
const dueHosts = presentHost + ` AND m.state NOT IN ('lost', 'retired')
	AND (h.judged_by <> CASE WHEN ` + hostExpired + ` THEN @floors || ' expired' ELSE @floors END
		OR m.floor_boot <> m.agent_boot OR m.floor_until <= clock_timestamp())`

// presentHost is true for facts h that apply to the present process of the agent of machine m: those that it has
// reported, or that an earlier process has reported whose verdict still applies.
const presentHost = `(h.agent_boot = m.agent_boot OR m.floor_boot = m.agent_boot)`

// hostExpired is true for facts h that are too old for a verdict. Agents report every ten minutes.
const hostExpired = `h.at < clock_timestamp() - interval '1 hour'`

// JudgeHosts stores the leader's verdicts about machines whose facts, floors or waivers have changed, and returns the
// changed ones. judge returns the reasons for which facts do not meet the floors, and floors identifies these floors. A
// waiver that has ended, or is about another version than the reported one, is deleted.
func (d *Machines) JudgeHosts(ctx context.Context, term Term, floors string,
	judge func(wire.HostFacts) []wire.HostFinding) (changed []HostVerdict, err error) {
	args := namedArgs{"floors": floors, "limit": floorBatch}
	// Most calls find nothing to judge; this read spares them the leader's transaction.
	var some bool
	err = d.pool.QueryRow(ctx, `
		SELECT EXISTS (SELECT 1 FROM machine_hosts h JOIN machines m ON m.id = h.machine_id WHERE `+dueHosts+`)`,
		args).Scan(&some)
	if err != nil || !some {
		return nil, mapError(err, "hosts")
	}
	err = d.leaderTx(ctx, term, func(tx pgx.Tx) error {
		changed = nil
		hosts, err := lockHosts(ctx, tx, args)
		if err != nil {
			return err
		}
		if err := actAs(ctx, tx, "leader"); err != nil {
			return err
		}
		for _, h := range hosts {
			all, by := judge(h.facts), floors
			if h.expired {
				all, by = append(all, wire.HostFinding{Condition: wire.HostUnknown}), floors+" expired"
			}
			v, differs, err := h.judge(ctx, tx, by, all)
			if err != nil {
				return err
			}
			if differs {
				changed = append(changed, v)
			}
		}
		return nil
	})
	if err != nil {
		return nil, mapError(err, "hosts")
	}
	for _, v := range changed {
		d.hub.Publish(TopicMachine, string(v.Machine))
	}
	if len(changed) > 0 {
		d.hub.Publish(TopicQueue, "")
	}
	return changed, nil
}

// lockHosts locks and reads machines to judge: first the machines, then their facts.
func lockHosts(ctx context.Context, tx pgx.Tx, args namedArgs) ([]judgedHost, error) {
	rows, err := tx.Query(ctx, `
		SELECT m.id
		FROM machines m
		JOIN machine_hosts h ON h.machine_id = m.id
		WHERE `+dueHosts+`
		ORDER BY m.id
		LIMIT @limit
		FOR NO KEY UPDATE OF m`, args)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	rows, err = tx.Query(ctx, `
		SELECT m.id, h.facts, m.floor_findings, coalesce((
			SELECT jsonb_agg(`+waiverDocument+`)
			FROM machine_waivers w
			WHERE w.machine_id = m.id), '[]'), `+hostExpired+`
		FROM machine_hosts h
		JOIN machines m ON m.id = h.machine_id
		WHERE m.id = ANY(@ids) AND `+presentHost+`
		ORDER BY m.id
		FOR NO KEY UPDATE OF h`, namedArgs{"ids": ids})
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (h judgedHost, err error) {
		err = row.Scan(&h.id, &h.facts, &h.before, &h.waivers, &h.expired)
		return h, err
	})
}

// waiverDocument is a waiver w as JSON.
const waiverDocument = `jsonb_build_object('component', w.component, 'version', w.version, 'until', w.until,
	'reason', w.reason, 'actor', w.actor, 'at', w.at, 'findings', w.findings)`

// judge stores the verdict about one machine, and reports whether it differs from the last one.
func (h judgedHost) judge(ctx context.Context, tx pgx.Tx, floors string, all []wire.HostFinding) (v HostVerdict,
	differs bool, err error) {
	now := time.Time{}
	if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&now); err != nil {
		return v, false, err
	}
	findings := []wire.HostFinding{}
	var waived []string
	var ended []string
	var until *time.Time
	for _, w := range h.waivers {
		value, _ := h.facts.Reported(w.Component)
		// A missing version may be there again in the next report.
		if !w.Until.After(now) || value != "" && value != w.Version {
			ended = append(ended, w.Component)
		}
	}
	for _, f := range all {
		at := slices.IndexFunc(h.waivers, func(w wire.HostWaiver) bool {
			value, ok := h.facts.Reported(w.Component)
			return ok && value == w.Version && !slices.Contains(ended, w.Component) && covers(w, f)
		})
		if at < 0 {
			findings = append(findings, f)
			continue
		}
		w := h.waivers[at]
		waived = append(waived, fmt.Sprintf("%s %s until %s", w.Component, w.Version,
			w.Until.UTC().Format(time.DateOnly)))
		if until == nil || w.Until.Before(*until) {
			until = &w.Until
		}
	}
	v = HostVerdict{Machine: h.id, Met: len(findings) == 0, Text: verdictText(findings, waived)}
	differs = h.before == nil || !slices.EqualFunc(h.before, findings, equalFindings)
	return v, differs, h.write(ctx, tx, floors, v.Text, all, findings, until, ended)
}

// covers reports whether a waiver is about a finding: it covers only the advisories and the floor of its time.
func covers(w wire.HostWaiver, f wire.HostFinding) bool {
	return slices.ContainsFunc(w.Findings, func(g wire.HostFinding) bool {
		return f.Component == g.Component && f.Condition == g.Condition && f.Floor == g.Floor &&
			(len(f.Advisories) == 0) == (len(g.Advisories) == 0) &&
			!slices.ContainsFunc(f.Advisories, func(a string) bool { return !slices.Contains(g.Advisories, a) })
	})
}

// equalFindings reports whether two findings are the same.
func equalFindings(a, b wire.HostFinding) bool {
	return a.Condition == b.Condition && a.Component == b.Component && a.Version == b.Version && a.Floor == b.Floor &&
		slices.Equal(a.Advisories, b.Advisories)
}

// verdictText describes a verdict for the history of a machine.
func verdictText(findings []wire.HostFinding, waived []string) string {
	text := "meets the security floors"
	if len(findings) > 0 {
		text = "does not meet the security floors: " + unmetText(findings)
	}
	if len(waived) > 0 {
		text += "; waived: " + strings.Join(waived, ", ")
	}
	return text
}

// unmetText lists findings for people. No findings stand for a machine without a verdict.
func unmetText(findings []wire.HostFinding) string {
	if len(findings) == 0 {
		findings = []wire.HostFinding{{Condition: wire.HostUnknown}}
	}
	list := make([]string, len(findings))
	for i, f := range findings {
		list[i] = f.String()
	}
	return strings.Join(list, "; ")
}

// write stores a verdict, and deletes the waivers that have ended. all are the findings with the waived ones.
func (h judgedHost) write(ctx context.Context, tx pgx.Tx, floors, text string, all, findings []wire.HostFinding,
	until *time.Time, ended []string) error {
	labels := []string{}
	for _, f := range findings {
		if f.Condition != wire.HostUnknown && !slices.Contains(labels, f.Condition) {
			labels = append(labels, f.Condition)
		}
	}
	stored, err := json.Marshal(findings)
	if err != nil {
		return err
	}
	every, err := json.Marshal(slices.Concat([]wire.HostFinding{}, all)) // [], not null
	if err != nil {
		return err
	}
	args := namedArgs{"id": h.id, "floors": floors, "all": every, "findings": stored, "until": until,
		"labels": labels, "ended": ended, "text": text}
	batch := &pgx.Batch{} // one round trip under the locks
	for _, sql := range []string{
		`SELECT set_config('berth.note', @text, true)`,
		`UPDATE machines
		SET floor_findings = @findings, floor_boot = agent_boot, floor_until = @until, floor_conditions = @labels
		WHERE id = @id`,
		`SELECT set_config('berth.note', '', true)`,
		`UPDATE machine_hosts SET judged_by = @floors, findings = @all WHERE machine_id = @id`,
		`DELETE FROM machine_waivers WHERE machine_id = @id AND component = ANY(@ended)`,
	} {
		batch.Queue(sql, args)
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("store the verdict about machine %s: %w", h.id, err)
	}
	return nil
}

// Waive records an operator's statement that the reported version of a component is secure, until a date. It covers the
// advisories that the leader has found for this version. A later statement replaces it. The leader renews the verdict.
// A component that the machine has not reported, or that meets its floor, is invalid. Facts that the leader has not
// judged yet, and another version than the one of the statement, are a conflict.
func (d *Machines) Waive(ctx context.Context, id berth.MachineID, w spec.NewWaiver, actor string) error {
	return changeWaivers(ctx, d, id, func(tx pgx.Tx, host waivedHost) error {
		version, ok := host.facts.Reported(w.Component)
		if !ok {
			return berth.Errorf(berth.CodeInvalid, "machine %s has not reported %s: allowed are %s", id, w.Component,
				strings.Join(waivable(host.facts), ", "))
		}
		if w.Version != "" && w.Version != version {
			return berth.Errorf(berth.CodeConflict, "machine %s reports %s %s, and the waiver is for %.128s: judge "+
				"the reported version", id, w.Component, cmp.Or(version, "no version"), w.Version)
		}
		if host.findings == nil {
			return berth.Errorf(berth.CodeConflict, "the last report of machine %s is not judged yet: try again "+
				"in some seconds", id)
		}
		findings := slices.DeleteFunc(host.findings, func(f wire.HostFinding) bool {
			return f.Component != w.Component
		})
		if len(findings) == 0 {
			return berth.Errorf(berth.CodeInvalid, "%s of machine %s meets its security floor: allowed are "+
				"components below their floors", w.Component, id)
		}
		stored, err := json.Marshal(findings)
		if err != nil {
			return err
		}
		args := namedArgs{"id": id, "component": w.Component, "version": version, "until": w.Until,
			"reason": w.Reason, "actor": actor, "findings": stored}
		_, err = tx.Exec(ctx, `
			INSERT INTO machine_waivers (machine_id, component, version, until, reason, actor, findings)
			VALUES (@id, @component, @version, @until, @reason, @actor, @findings)
			ON CONFLICT (machine_id, component) DO UPDATE
			SET version = excluded.version, until = excluded.until, reason = excluded.reason, actor = excluded.actor,
				findings = excluded.findings, at = clock_timestamp()`, args)
		if err != nil {
			return err
		}
		return noteWaiver(ctx, tx, id, actor, fmt.Sprintf("security floor of %s %s waived until %s: %s", w.Component,
			version, w.Until.UTC().Format(time.RFC3339), w.Reason))
	})
}

// Unwaive ends an operator's statement about a component before its date. Without one the error is not_found.
func (d *Machines) Unwaive(ctx context.Context, id berth.MachineID, component, actor string) error {
	return changeWaivers(ctx, d, id, func(tx pgx.Tx, _ waivedHost) error {
		tag, err := tx.Exec(ctx, `DELETE FROM machine_waivers WHERE machine_id = @id AND component = @component`,
			namedArgs{"id": id, "component": component})
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return berth.Errorf(berth.CodeNotFound, "machine %s has no waiver of %.80s", id, component)
		}
		return noteWaiver(ctx, tx, id, actor, "waiver of the security floor of "+component+" ended")
	})
}

// waivedHost is the last report of a machine, and the findings about it: nil if it is not judged yet.
type waivedHost struct {
	facts    wire.HostFacts
	findings []wire.HostFinding
}

// changeWaivers runs a change of the waivers of a machine under the machine's lock, and has the leader judge it again.
func changeWaivers(ctx context.Context, d *Machines, id berth.MachineID,
	change func(pgx.Tx, waivedHost) error) error {
	err := d.tx(ctx, func(tx pgx.Tx) error {
		var host waivedHost
		err := tx.QueryRow(ctx, `
			SELECT coalesce(h.facts, '{}'), h.findings
			FROM machines m
			LEFT JOIN machine_hosts h ON h.machine_id = m.id AND `+presentHost+`
			WHERE m.id = @id AND m.state <> 'retired'
			FOR NO KEY UPDATE OF m`, namedArgs{"id": id}).Scan(&host.facts, &host.findings)
		if err != nil {
			return err
		}
		if err := change(tx, host); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE machine_hosts SET judged_by = '' WHERE machine_id = @id`, namedArgs{"id": id})
		if err != nil {
			return err
		}
		// A verdict that rests on waivers does not outlast their change.
		_, err = tx.Exec(ctx, `
			UPDATE machines SET floor_until = clock_timestamp() WHERE id = @id AND floor_until IS NOT NULL`,
			namedArgs{"id": id})
		return err
	})
	if err != nil {
		return mapError(err, "machine "+string(id))
	}
	d.hub.Publish(TopicMachine, string(id))
	return nil
}

// noteWaiver adds an event about a waiver to the history of a machine.
func noteWaiver(ctx context.Context, tx pgx.Tx, id berth.MachineID, actor, text string) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO machine_events (machine_id, state, reason, epoch, host_boot, cpu_m, mem_mb, disk_mb, gpu_milli,
			actor, drain_deadline, meets_floors)
		SELECT m.id, m.state, @text, m.epoch, m.host_boot, m.cpu_m, m.mem_mb, m.disk_mb, m.gpu_milli, @actor,
			CASE WHEN m.state = 'draining' THEN m.drain_deadline END,
			floors_met(m.floor_findings, m.floor_boot, m.agent_boot)
		FROM machines m
		WHERE m.id = @id`, namedArgs{"id": id, "text": text, "actor": actor})
	return err
}

// waivable lists the names that a waiver may have.
func waivable(facts wire.HostFacts) []string {
	list := []string{}
	for _, c := range facts.Components {
		list = append(list, c.Name)
	}
	return append(list, wire.SettingSeccomp, wire.SettingLSM, wire.SettingUserNS)
}

// machineSecurity is the part of the document of machine m about the security floors; see completeSecurity.
const machineSecurity = `
	(SELECT jsonb_build_object('findings', CASE WHEN m.floor_boot = m.agent_boot THEN m.floor_findings END,
		'facts', h.facts, 'reported_at', h.at, 'waivers', (
			SELECT jsonb_agg(` + waiverDocument + ` ORDER BY w.component)
			FROM machine_waivers w
			WHERE w.machine_id = m.id AND w.until > clock_timestamp()))
	FROM (SELECT 1) one
	LEFT JOIN machine_hosts h ON h.machine_id = m.id
	WHERE m.host_boot <> '')`

// completeSecurity derives the conditions and the texts from the findings. Without a verdict about the present process
// of the agent the condition is unknown.
func completeSecurity(s *wire.MachineSecurity) {
	if s == nil {
		return
	}
	if s.Findings == nil {
		s.Findings = []wire.HostFinding{{Condition: wire.HostUnknown}}
	}
	for _, f := range s.Findings {
		s.Reasons = append(s.Reasons, f.String())
		if !slices.Contains(s.Conditions, f.Condition) {
			s.Conditions = append(s.Conditions, f.Condition)
		}
	}
}
