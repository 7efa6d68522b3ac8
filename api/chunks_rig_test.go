package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"berth"
	"berth/api"
	"berth/wire"
)

// onChunks is a site whose machines store checkpoints by chunks, in a folder.
func onChunks(t *testing.T) *site {
	t.Helper()
	return newSite(t, func(d *api.Deps) { d.Agent.Chunks = true })
}

func chunkOf(content string) wire.Chunk {
	return wire.Chunk{SHA256: hexSum(content), Bytes: int64(len(content))}
}

// asks asks a question about chunks of a step of the agent's member.
func (a *agent) asks(job wire.Job, step int64, want wire.ChunkWant, contents ...string) wire.ChunkRequest {
	r := wire.ChunkRequest{AgentBoot: a.boot, Epoch: a.epoch, Job: job.ID, Attempt: 1, Step: step, Want: want}
	for _, content := range contents {
		r.Chunks = append(r.Chunks, chunkOf(content))
	}
	return r
}

// stores sends chunks through the server.
func (a *agent) stores(job wire.Job, step int64, contents ...string) {
	a.t.Helper()
	var answer wire.ChunkAnswer
	a.post("chunks", a.asks(job, step, wire.ChunkStore, contents...), &answer)
	for i, content := range contents {
		if answer.Chunks[i].Have {
			continue
		}
		if got := a.call(string(a.machine), "PUT", "/agent/v1/objects/"+answer.Chunks[i].Key, content); got.status != http.StatusNoContent {
			a.t.Fatalf("chunk %d: %d %s", i, got.status, got.body)
		}
	}
}

// reports reports a step with one file that consists of chunks.
func (a *agent) reports(job wire.Job, step int64, contents ...string) answer {
	a.t.Helper()
	f := wire.CheckpointFile{Path: "weights", SHA256: hexSum(strings.Join(contents, "")), Bytes: int64(len(strings.Join(contents, "")))}
	for _, content := range contents {
		f.Chunks = append(f.Chunks, chunkOf(content))
	}
	body, err := json.Marshal(wire.CheckpointManifest{Job: job.ID, Attempt: 1, Step: step, Files: []wire.CheckpointFile{f}})
	if err != nil {
		a.t.Fatal(err)
	}
	key := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, step) + "/" + berth.ManifestName
	if got := a.call(string(a.machine), "PUT", "/agent/v1/objects/"+key, string(body)); got.status != http.StatusNoContent {
		a.t.Fatalf("manifest: %d %s", got.status, got.body)
	}
	return a.post(wire.ChunkedCheckpoints, wire.CheckpointReport{AgentBoot: a.boot, Epoch: a.epoch, Alloc: a.run.Alloc,
		Job: job.ID, Attempt: 1, OfAttempt: 1, Step: step, Manifest: key, SHA256: hexSum(string(body)), Bytes: f.Bytes}, nil)
}

// readsChunk reads a chunk of a step through the server.
func (a *agent) readsChunk(job wire.Job, step int64, content string) answer {
	a.t.Helper()
	return a.call(string(a.machine), "GET", "/agent/v1/"+wire.ChunkPath(job.ID, 1, 0, step, hexSum(content)), "")
}

// inForce returns the copy of a content that the tenant's checkpoints use.
func (s *site) inForce(content string) (c wire.ChunkCopy) {
	s.t.Helper()
	c.SHA256 = hexSum(content)
	if err := s.db.Pool().QueryRow(s.t.Context(), `
		SELECT tenant, job::text, attempt, rank, copy FROM chunks WHERE sha256 = decode($1, 'hex')`, c.SHA256).
		Scan(&c.Tenant, &c.Job, &c.Attempt, &c.Rank, &c.Random); err != nil {
		s.t.Fatal(err)
	}
	return c
}

// sendsDirect sends chunks by signed addresses, and lets the server compare them.
func (a *agent) sendsDirect(job wire.Job, step int64, contents ...string) {
	a.t.Helper()
	var answer wire.ChunkAnswer
	a.post("chunks", a.asks(job, step, wire.ChunkStore, contents...), &answer)
	for i, content := range contents {
		if status, text := a.sends("PUT", answer.Chunks[i].Address, content); status != http.StatusOK {
			a.t.Fatalf("put: %d %s", status, text)
		}
	}
	a.post("chunks", a.asks(job, step, wire.ChunkStored, contents...), &answer)
	for i := range contents {
		if !answer.Chunks[i].Have {
			a.t.Fatalf("chunk %d is not stored: %+v", i, answer)
		}
	}
}
