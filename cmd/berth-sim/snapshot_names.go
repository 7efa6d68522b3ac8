package main

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	"berth"
	"berth/db/history"
	"berth/spec"
)

// pseudonyms replaces names by keyed hashes: equal names get equal pseudonyms, so the structure stays. The key is
// random and is not stored, so guesses of names cannot be tested. The zero value keeps all names.
type pseudonyms struct{ key []byte }

// newPseudonyms returns pseudonyms with a new key.
func newPseudonyms() pseudonyms {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	return pseudonyms{key}
}

// pseudonymBytes is the length of the hash in a pseudonym. With 8 bytes, two of a million names collide with a
// probability of 3e-8.
const pseudonymBytes = 8

// of returns the pseudonym of a name among the names of one kind; the empty name stays empty.
func (p pseudonyms) of(kind, name string) string {
	if p.key == nil || name == "" {
		return name
	}
	h := hmac.New(sha256.New, p.key)
	h.Write([]byte(kind + "\x00" + name))
	return kind + "-" + hex.EncodeToString(h.Sum(nil)[:pseudonymBytes])
}

func (p pseudonyms) tenantID(id berth.TenantID) berth.TenantID {
	return berth.TenantID(p.of("tenant", string(id)))
}

func (p pseudonyms) machineID(id berth.MachineID) berth.MachineID {
	return berth.MachineID(p.of("machine", string(id)))
}

func (p pseudonyms) jobID(id berth.JobID) berth.JobID { return berth.JobID(p.of("job", string(id))) }

// labels replaces keys and values. The order of the pairs stays.
func (p pseudonyms) labels(list []labelPair) []labelPair {
	out := make([]labelPair, len(list))
	for i, l := range list {
		out[i] = labelPair{p.of("label", l[0]), p.of("value", l[1])}
	}
	return out
}

func (p pseudonyms) tenant(t *history.RecordedTenant) {
	t.ID, t.Parent = p.tenantID(t.ID), p.tenantID(t.Parent)
}

func (p pseudonyms) pool(x *history.RecordedPool) {
	x.Name = p.of("pool", x.Name)
	x.Tenants = slices.Clone(x.Tenants)
	for i, t := range x.Tenants {
		x.Tenants[i] = p.tenantID(t)
	}
}

// burst keeps the regions of a policy and replaces the names of providers.
func (p pseudonyms) burst(b *history.RecordedBurst) {
	b.Tenant = p.tenantID(b.Tenant)
	b.Policy.Allow = slices.Clone(b.Policy.Allow)
	for i, a := range b.Policy.Allow {
		provider, region, _ := strings.Cut(a, "/")
		b.Policy.Allow[i] = p.of("provider", provider) + "/" + region
	}
}

func (p pseudonyms) class(c *snapshotClass) {
	// The name is a hash of the request, by which guesses of labels could be tested.
	c.Class = p.of("class", c.Class)
	if len(c.Request.Groups) > 0 {
		// The label is for other readers of the class than the engine, which does not know it by another name.
		c.Request.Labels = slices.DeleteFunc(slices.Clone(c.Request.Labels),
			func(l labelPair) bool { return l[0] == spec.GroupsLabel })
		c.Request.Groups = slices.Clone(c.Request.Groups)
		for i := range c.Request.Groups {
			c.Request.Groups[i].Name = p.of("group", c.Request.Groups[i].Name)
		}
	}
	c.Request.Labels = p.labels(c.Request.Labels)
	c.Request.SameLabel = p.of("label", c.Request.SameLabel)
	c.Request.Avoid = slices.Clone(c.Request.Avoid)
	for i, m := range c.Request.Avoid {
		c.Request.Avoid[i] = p.machineID(m)
	}
}

func (p pseudonyms) machine(m *snapshotMachine) {
	m.ID, m.Pool, m.Network = p.machineID(m.ID), p.of("pool", m.Pool), p.of("network", m.Network)
	m.Labels = p.labels(m.Labels)
}

func (p pseudonyms) launch(l *history.RecordedLaunch) {
	l.Machine, l.Tenant = p.machineID(l.Machine), p.tenantID(l.Tenant)
	l.Provider = p.of("provider", l.Provider)
}

func (p pseudonyms) job(j *history.RecordedJob) {
	j.ID, j.Parent, j.Tenant = p.jobID(j.ID), p.jobID(j.Parent), p.tenantID(j.Tenant)
	j.Class, j.Like = p.of("class", j.Class), p.of("name", j.Like)
	for _, a := range j.Attempts {
		for i := range a.Members {
			a.Members[i].Machine = p.machineID(a.Members[i].Machine)
		}
	}
}
