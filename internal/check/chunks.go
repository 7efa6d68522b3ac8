package check

import "berth"

// chunksAddUp proves the first half of invariant 36: the count in the row of each chunk is the number of its
// references. A count that is too low would let a collection delete content of a checkpoint.
func chunksAddUp(c *clusterCase) {
	for _, m := range c.c.Miscounted {
		if m.Refs == nil {
			c.breach(rows(m), "chunk %s of tenant %s has no row and %d references", m.SHA256, m.Tenant, m.Rows)
			continue
		}
		c.breach(rows(m), "chunk %s of tenant %s counts %d references of %d", m.SHA256, m.Tenant, *m.Refs, m.Rows)
	}
}

// chunksFollowCheckpoints proves the second half of invariant 36.
func chunksFollowCheckpoints(c *jobCase) {
	for _, p := range c.j.Checkpoints {
		stored := p.State == berth.CheckpointPartial || p.State == berth.CheckpointVerified
		switch {
		case stored && p.ChunkedBytes > 0 && p.ChunkRefs == 0:
			c.breach(rows(p), "step %d of attempt %d has %d bytes in chunks and names none", p.Step, p.Attempt,
				p.ChunkedBytes)
		case p.ChunkRefs > 0 && (!stored || p.ChunkedBytes == 0):
			c.breach(rows(p), "step %d of attempt %d is %s and names %d chunks", p.Step, p.Attempt, p.State,
				p.ChunkRefs)
		}
	}
}
