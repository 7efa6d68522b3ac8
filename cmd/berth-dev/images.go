package main

import (
	"context"
	"fmt"
	"strings"

	"berth/internal/devstack/dockerd"
)

// provide imports every --image into the machine's engine, unless the engine has an image
// of that name. The fake engine needs no images.
func (m *machine) provide(ctx context.Context) error {
	if m.host == "" {
		return nil
	}
	for _, i := range m.cfg.Images {
		name, path, _ := strings.Cut(i, "=")
		// By name only: an engine that outlives the stack keeps its images.
		imported, err := dockerd.ImportImage(ctx, m.host, name, path)
		if err != nil {
			return fmt.Errorf("import %s into the engine of %s: %w", name, m.name, err)
		}
		if imported {
			m.log.Info("image loaded into engine", "machine_id", m.name, "image", name)
		}
	}
	return nil
}
