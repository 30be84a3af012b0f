-- Asks tollgate about each request (haproxy.cfg beside this file), and answers what it says where that is no 2xx.

local TOLLGATE = "http://127.0.0.1:8081/"
local PATIENCE = 1000 -- milliseconds
local MAX_FIELDS = 100 -- with more than 101 fields in a question, HAProxy's HTTP client ends the whole process
-- the headers of limits with `over_limit: { mark: x-over-limit }`: tollgate's values replace the client's
local MARKS = {
    --"x-over-limit",
}
local NOT_COPIED = { ["host"] = true, ["connection"] = true, ["content-length"] = true, ["transfer-encoding"] = true }

local function ask(txn)
    local headers, count = {}, 5 -- the fields that are set below
    for name, values in pairs(txn.http:req_get_headers()) do
        if not NOT_COPIED[name] then
            headers[name] = values
            for _ in pairs(values) do
                count = count + 1
            end
        end
    end
    if count > MAX_FIELDS then
        return txn:done(txn:reply({ status = 431 }))
    end
    -- all of them: what a client sends under these names would be believed otherwise
    headers["x-forwarded-method"] = { txn.f:method() }
    headers["x-forwarded-proto"] = { txn.f:ssl_fc() == 1 and "https" or "http" }
    headers["x-forwarded-host"] = { txn.f:req_fhdr("host") } -- the whole field: ACLs match each value between its commas
    headers["x-forwarded-uri"] = { txn.f:pathq() }
    headers["x-forwarded-for"] = { txn.f:src() }

    local answer = core.httpclient():get({ url = TOLLGATE, headers = headers, timeout = PATIENCE })
    if answer.status >= 200 and answer.status < 300 then
        for _, name in ipairs(MARKS) do
            txn.http:req_del_header(name)
            for _, value in pairs(answer.headers[name] or {}) do
                txn.http:req_add_header(name, value)
            end
        end
        return
    end
    local reply = txn:reply({ status = answer.status, reason = answer.reason, body = answer.body })
    for name, values in pairs(answer.headers) do
        if not NOT_COPIED[name] then
            for _, value in pairs(values) do
                reply:add_header(name, value)
            end
        end
    end
    txn:done(reply)
end

core.register_action("tollgate", { "http-req" }, ask)
