#!/bin/bash
# Runs once, when the image of PostgreSQL creates its cluster: a role and its databases for each service.
set -euo pipefail
psql --quiet --set ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" \
	--set berth="$BERTH_DATABASE_PASSWORD" --set temporal="$TEMPORAL_DATABASE_PASSWORD" <<'END'
CREATE ROLE berth LOGIN PASSWORD :'berth';
CREATE DATABASE berth OWNER berth;
CREATE ROLE temporal LOGIN PASSWORD :'temporal';
CREATE DATABASE temporal OWNER temporal;
CREATE DATABASE temporal_visibility OWNER temporal;
END
