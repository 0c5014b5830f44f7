-- A member holds a lock of one large key: its first half stands for the group, its second is the member's own
-- number, so nobody else can hold it. Locks of subscribers have two small keys, and are counted apart.

-- name: join_group
SELECT pg_backend_pid()
FROM (SELECT pg_advisory_lock(($1::bigint << 32) | pg_backend_pid())) AS joined;

-- name: leave_group
SELECT pg_advisory_unlock(($1::bigint << 32) | pg_backend_pid());

-- name: list_members
-- Keys are shown as if they had no sign; objsubid is 1 where the key is one.
SELECT objid::bigint FROM pg_catalog.pg_locks
WHERE locktype = 'advisory' AND granted AND objsubid = 1
    AND classid = ($1::bigint & 4294967295)::oid
    AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
ORDER BY objid::bigint;

-- name: list_holders
-- Who has the locks with the keys $1, $2, in their order; NULL: nobody.
SELECT held.pid::bigint
FROM unnest($1::integer[], $2::integer[]) WITH ORDINALITY AS wanted (first, second, place)
LEFT JOIN (
    SELECT pid, classid, objid FROM pg_catalog.pg_locks
    WHERE locktype = 'advisory' AND granted AND objsubid = 2
        AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
) AS held
ON held.classid = (wanted.first::bigint & 4294967295)::oid
    AND held.objid = (wanted.second::bigint & 4294967295)::oid
ORDER BY wanted.place;
